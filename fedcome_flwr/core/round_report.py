"""What a round did to the clients: the numbers that say whether the promise was kept."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays
from .dual_cone import ConsensusSolution
from .weighting import combined_norm

HURT_BELOW = -1e-9  # a normalised product below this is a conflict and no rounding error
VANISHING_BELOW = 0.05  # of the mean's norm; rounds without hostile clients measured 1.2 to 3.2 (docs/robustness.md)
_NORM_NOISE = 1e-7  # of Σ p_i ‖g_i‖: a norm taken from a Gram matrix is known to the root of float64's precision


@dataclass(frozen=True)
class RoundReport:
    r"""One round, as it was.

    Lists have one entry a client, in the order of ``clients``. Products are normalised:
    :math:`\langle u, g_j \rangle / (\lVert g_j \rVert \sum_i p_i \lVert g_i \rVert)`, since the cosine itself is
    noise when u nearly vanishes. The margin compares both sides of the condition under which client j's own loss
    falls, :math:`\tfrac12 L s \lVert u \rVert^2 < p_j \lVert \tilde g_j \rVert^2`, with s the factor on u that was
    applied and L the smoothness in units of one local step (local learning rate × the loss's own smoothness).

    Attributes
    ----------
    round, method
        Absolute round number and the method's name.
    clients
        Keys of the clients whose replies were used, sorted.
    client_weights, train_losses, client_metrics
        Their importances; the losses of the received model (``None`` where not reported); all that they reported.
    left_out
        Clients whose reply could not be used, with the reason.
    missing
        Clients that were asked and did not answer.
    stray_replies
        Number of replies from nodes that were not asked in this round, or to messages of another one.
    conflicting_pairs
        Share of client pairs whose pseudo-gradients have a negative inner product.
    hurt_by_mean, hurt_by_direction
        Number of clients that the weighted mean and the direction would hurt to first order.
    smallest_product, smallest_product_of_mean
        Smallest normalised product of the direction, and of the weighted mean, with a client.
    relative_change, remaining_conflicts
        Of weightings that change every client's pseudo-gradient, from g to :math:`\tilde g`: the mean over the clients
        of :math:`\lVert \tilde g_i - g_i \rVert / \lVert g_i \rVert`, and the share of pairs with
        :math:`\langle \tilde g_i, \tilde g_j \rangle < 0`, rounding apart. ``None`` for the others.
    norm_ratio
        Norm of the direction over norm of the weighted mean; NaN when the mean vanishes, that is, up to the rounding of
        a norm that is taken from a Gram matrix, 1e-7 of :math:`\sum_i p_i \lVert g_i \rVert`.
    direction_norm, update_norm
        Norm of u, and of what was subtracted from the model.
    server_step
        Factor on u (before ``max_update_norm``).
    descent_bounds, descent_cost, smoothness_limit
        :math:`p_j \lVert \tilde g_j \rVert^2` for each client (``None`` without consensus programs),
        :math:`\tfrac12 s \lVert u \rVert^2`, and the largest L for which every client's loss must fall.
    at_influence_limit, veto
        Number of clients at the influence limit, and how much each client bends the others:
        :math:`\sum_i p_i \hat v_{ij}`.
    residual, solver, certified, fallbacks
        Largest KKT residual, the solver used, whether its solution passed its certificate, and which solvers
        failed before.
    annealed, selection_energy, times_chosen
        Clients chosen by annealing, H of that set, and how often each client has been chosen so far.
    memory_epoch, memory_strayed
        Under methods with client memory: how often all memories were set back to 0 so far, and the clients whose
        memory was not the one that the server had counted, because of which they were in this round.
    control_norm, drift_norm
        Norm of the control variate C that was sent, and of the mean drift that was added to the model.
    unchanged
        Why the model was left as it was, or ``None``.
    seconds
        Time spent in each step of the server.
    evaluations, evaluation_left_out, server_metrics
        Filled in after evaluation: each client's metrics, evaluation replies that could not be used, and what
        ``evaluate_fn`` returned.
    """

    round: int
    method: str
    clients: tuple[str, ...] = ()
    client_weights: tuple[float, ...] = ()
    train_losses: tuple[float | None, ...] = ()
    client_metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    stray_replies: int = 0
    conflicting_pairs: float = 0.0
    hurt_by_mean: int = 0
    hurt_by_direction: int = 0
    smallest_product: float = 0.0
    smallest_product_of_mean: float = 0.0
    relative_change: float | None = None
    remaining_conflicts: float | None = None
    norm_ratio: float = float("nan")
    direction_norm: float = 0.0
    update_norm: float = 0.0
    server_step: float = 1.0
    descent_bounds: tuple[float, ...] | None = None
    descent_cost: float = 0.0
    smoothness_limit: float | None = None
    at_influence_limit: int = 0
    veto: tuple[float, ...] | None = None
    residual: float | None = None
    solver: str | None = None
    certified: bool | None = None
    fallbacks: tuple[str, ...] = ()
    annealed: tuple[str, ...] = ()
    selection_energy: float = 0.0
    times_chosen: Mapping[str, int] = field(default_factory=dict)
    memory_epoch: int | None = None
    memory_strayed: tuple[str, ...] = ()
    control_norm: float | None = None
    drift_norm: float | None = None
    unchanged: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    evaluation_left_out: Mapping[str, str] = field(default_factory=dict)
    server_metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def largest_veto(self) -> tuple[str, float] | None:
        """The client that bends the others most, and its share of all veto, in (0, 1]; ``None`` where nobody does."""
        total = sum(self.veto or ())
        if not self.veto or total <= 0:
            return None
        largest = max(self.veto)
        return self.clients[self.veto.index(largest)], largest / total

    @property
    def vanishes(self) -> bool:
        """Whether the consensus programs leave less than 1/20 of the mean's length, as one hostile client can do.

        False where the mean vanishes too: then nothing was lost.
        """
        return self.veto is not None and self.norm_ratio < VANISHING_BELOW


OnRound = Callable[[RoundReport], bool | None]
"""What a strategy calls with every round's report; ``True`` ends the training."""


def with_geometry(
    report: RoundReport,
    gram: NDArray[np.float64],
    weights: NDArray[np.float64],
    coefficients: NDArray[np.float64],
) -> RoundReport:
    """The report with what the Gram matrix says of the direction and of the weighted mean.

    ``weights`` has one entry a client of the round; further rows of the Gram matrix belong to absent clients.
    """
    count = len(weights)
    above = np.triu_indices(count, 1)
    norm = combined_norm(gram, coefficients)
    products = gram[:count] @ coefficients
    gram = gram[:count, :count]
    of_direction = _normalised_products(gram, weights, products)
    of_mean = _normalised_products(gram, weights, gram @ weights)
    mean_norm = combined_norm(gram, weights)
    vanished = mean_norm <= _NORM_NOISE * float(weights @ np.sqrt(np.diagonal(gram)))
    return replace(
        report,
        conflicting_pairs=float(np.mean(gram[above] < 0)) if count > 1 else 0.0,
        hurt_by_mean=int(np.sum(of_mean < HURT_BELOW)),
        hurt_by_direction=int(np.sum(of_direction < HURT_BELOW)),
        smallest_product=float(of_direction.min()),
        smallest_product_of_mean=float(of_mean.min()),
        norm_ratio=float("nan") if vanished else norm / mean_norm,
        direction_norm=norm,
    )


def with_projections(
    report: RoundReport, gram: NDArray[np.float64], projections: NDArray[np.float64] | None
) -> RoundReport:
    """The report with how far the clients' pseudo-gradients were changed, and how they get on with each other now.

    ``projections`` has one row a client of the round and one column for each row of the Gram matrix.
    """
    if projections is None:
        return report
    count = len(projections)
    change = projections - np.eye(count, len(gram))
    norms = np.sqrt(np.diagonal(gram)[:count])
    moved = norms > 0  # a client that stood still has no direction to change
    changed = np.sqrt(np.maximum(np.einsum("ij,ij->i", change @ gram, change), 0.0))
    products = projections @ gram @ projections.T
    above = np.triu_indices(count, 1)
    conflicts = products[above] < HURT_BELOW * np.outer(norms, norms)[above]
    return replace(
        report,
        relative_change=float(np.mean(changed[moved] / norms[moved])) if moved.any() else 0.0,
        remaining_conflicts=float(np.mean(conflicts)) if count > 1 else 0.0,
    )


def with_solution(
    report: RoundReport,
    gram: NDArray[np.float64],
    weights: NDArray[np.float64],
    solution: ConsensusSolution | None,
) -> RoundReport:
    """The report with the consensus programs' certificate, descent margin and vetoes."""
    cost = 0.5 * report.update_norm * report.direction_norm
    if solution is None:
        return replace(report, descent_cost=cost)
    projected = np.einsum("ij,jk,ik->i", solution.coefficients, gram, solution.coefficients, optimize=True)
    bounds = weights * np.maximum(projected, 0.0)
    return replace(
        report,
        descent_bounds=tuple(map(float, bounds)),
        descent_cost=cost,
        smoothness_limit=float(bounds.min() / cost) if cost > 0 else None,
        at_influence_limit=int(solution.at_limit.sum()),
        veto=tuple(map(float, solution.veto(weights))),
        residual=solution.residual,
        solver=solution.solver,
        certified=solution.certified,
        fallbacks=solution.fallbacks,
    )


def norm_of(arrays: Arrays) -> float:
    """Euclidean norm over all arrays together."""
    return math.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays.values()))


def _normalised_products(
    gram: NDArray[np.float64], weights: NDArray[np.float64], products: NDArray[np.float64]
) -> NDArray[np.float64]:
    """⟨u, g_j⟩ over ‖g_j‖ Σ p_i ‖g_i‖; 0 for clients without a direction."""
    norms = np.sqrt(np.diagonal(gram))
    scale = norms * (weights @ norms)
    return np.divide(products, scale, out=np.zeros(len(gram)), where=scale > 0)
