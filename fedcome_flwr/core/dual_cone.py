r"""Consensus coefficients: each pseudo-gradient moved to the nearest vector that no client objects to.

For the pseudo-gradients :math:`g_1 \dots g_m`, only their Gram matrix :math:`K_{ij} = \langle g_i, g_j
\rangle` is needed (FedCOME, equations 3 to 6):

.. math:: \tilde g_i = \arg\min_{\tilde g} \tfrac12 \|\tilde g - g_i\|^2
          \quad \text{subject to} \quad \langle \tilde g, g_j \rangle \ge 0 \ \text{for every } j,

with :math:`\tilde g_i = \sum_j a_{ij} g_j`, :math:`a_i = e_i + v_i` and
:math:`v_i = \arg\min_{v \ge 0} \tfrac12 v^\top K v + K_i^\top v`.
"""

import logging
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._newton import solve_newton
from ._programs import ConsensusPrograms, checked_gram, norms_and_cosines
from ._qp_solvers import solve_cvxopt, solve_nnls
from .checks import check_choice, check_positive_or_none

_LOG = logging.getLogger(__name__)

_SOLVERS: Final = {"newton": solve_newton, "nnls": solve_nnls, "cvxopt": solve_cvxopt}
_CERTIFIED_PRODUCT = -1e-9
_CERTIFIED_RESIDUAL = 1e-8
# A residual above this is no inaccurate solution but none: the solver counts as failed.
_FAILED_RESIDUAL = 1e-4
# Interior-point solutions stop just short of the limit.
_AT_LIMIT = 1.0 - 1e-6


@dataclass(frozen=True, eq=False)
class ConsensusSolution:
    r"""Coefficients of the consensus vectors, and how far they can be trusted.

    Attributes
    ----------
    coefficients
        Row i is :math:`a_i`, so that :math:`\tilde g_i = \sum_j a_{ij} g_j`; shape ``[m, m]``.
    duals
        Normalised dual variables :math:`\hat v_{ij} = v_{ij} \|g_j\| / \|g_i\|`: how hard client j pushes the
        vector of client i; shape ``[m, m]``, non-negative.
    residual
        Violation of the optimality (KKT) conditions, the largest over all programs:
        :math:`\max_{ij} |\hat v_{ij} - \mathrm{clip}(\hat v_{ij} - w_{ij}, 0, c)|`, where
        :math:`w_{ij} = \langle \tilde g_i, g_j \rangle / (\|g_i\| \|g_j\|)` and c is the influence limit.
    smallest_product
        The smallest :math:`w_{ij}`; 0 where all clients have norm zero, or there are none.
    solver
        Whose solution this is: ``"newton"``, ``"nnls"``, ``"cvxopt"``, or ``"mean"`` after every solver
        failed; then each :math:`\tilde g_i` is :math:`g_i`.
    certified
        Whether the residual is at most 1e-8 and, without an influence limit, no product is below -1e-9.
        Never true for ``"mean"``.
    influence_limit
        The limit that was asked for.
    fallbacks
        Solvers that were tried before and failed, in order.
    """

    coefficients: NDArray[np.float64]
    duals: NDArray[np.float64]
    residual: float
    smallest_product: float
    solver: str
    certified: bool
    influence_limit: float | None
    fallbacks: tuple[str, ...]

    @property
    def at_limit(self) -> NDArray[np.bool_]:
        """Whether client j pushes some client's vector as hard as the limit allows, shape ``[m]``."""
        limit = math.inf if self.influence_limit is None else self.influence_limit
        touching: NDArray[np.bool_] = np.any(self.duals >= _AT_LIMIT * limit, axis=0)
        return touching

    def veto(self, client_weights: ArrayLike) -> NDArray[np.float64]:
        r"""Push of each client on the consensus, :math:`\sum_i p_i \hat v_{ij}`, shape ``[m]``.

        Parameters
        ----------
        client_weights
            Importance :math:`p_i` of each client, shape ``[m]``.
        """
        weights = np.asarray(client_weights, dtype=np.float64)
        if weights.shape != (len(self.duals),):
            raise ValueError(f"client_weights must have shape ({len(self.duals)},), got {weights.shape}")
        return weights @ self.duals


def solve_consensus(
    gram: ArrayLike, *, solver: str = "newton", influence_limit: float | None = None
) -> ConsensusSolution:
    r"""Solve the consensus program of every client (FedCOME, equations 3 to 6).

    Clients of norm zero keep their vector, zero, and constrain nobody. Scaling one client's pseudo-gradient
    by a positive number changes no other client's vector; equal input gives equal bytes. Where
    pseudo-gradients are linearly dependent the vectors :math:`\tilde g_i` are unique, their coefficients need
    not be.

    Two limits of float64, which the certificate reports. A cone that is not empty but narrower than about 1e-7
    (two clients opposed up to that angle, and a third one against what the two share) needs duals of 1e6 and
    more, whose products are rounded above 1e-9. And a Gram matrix summed in float32 with more clients than
    dimensions is indefinite by about 1e-7: its programs are solved up to that number, and not certified.

    Parameters
    ----------
    gram
        Inner products :math:`K_{ij} = \langle g_i, g_j \rangle` of the pseudo-gradients, shape ``[m, m]``,
        summed in float64; symmetric up to :math:`10^{-9} \sqrt{K_{ii} K_{jj}}`. It is not changed. Without
        clients (``[0, 0]``) the solution is empty.
    solver
        ``"newton"``, ours, for all clients at once; if it fails ``"nnls"`` takes over. ``"nnls"`` (SciPy) and
        ``"cvxopt"`` (optional extra) solve one client's program after the other. If all fail the solution is
        the plain mean's, uncertified. A fallback is logged, and listed in the solution.
    influence_limit
        Upper bound c of the normalised duals: the constraints become the penalty
        :math:`c \|g_i\| \sum_j \max(0, -\langle \tilde g, g_j \rangle) / \|g_j\|`, so that no single client
        can veto everything; in exchange a client can be hurt. None, the default, is the paper's program.
    """
    check_settings(solver, influence_limit)
    norms, cosines = norms_and_cosines(checked_gram(gram))
    limit = math.inf if influence_limit is None else float(influence_limit)
    present = np.flatnonzero(norms > 0.0)
    block = np.ix_(present, present)
    duals = np.zeros_like(cosines)
    residual, smallest_product = 0.0, 0.0
    fallbacks: tuple[str, ...] = ()
    if present.size:
        programs = ConsensusPrograms(cosines[block], limit)
        duals[block], solver, fallbacks = _first_success(programs, solver)
        products = programs.products(np.arange(present.size), duals[block])
        residual = float(programs.violations(duals[block], products).max())
        smallest_product = float(products.min())
    coefficients = np.eye(len(norms))
    coefficients[block] += duals[block] * (norms[present, None] / norms[present])
    return ConsensusSolution(
        coefficients=coefficients,
        duals=duals,
        residual=residual,
        smallest_product=smallest_product,
        solver=solver,
        certified=solver != "mean"
        and residual <= _CERTIFIED_RESIDUAL
        and (influence_limit is not None or smallest_product >= _CERTIFIED_PRODUCT),
        influence_limit=influence_limit,
        fallbacks=fallbacks,
    )


def check_settings(solver: str, influence_limit: float | None) -> None:
    """Refuse an unknown solver's name and a limit that is not positive and finite."""
    check_choice("solver", solver, tuple(_SOLVERS))
    check_positive_or_none("influence_limit", influence_limit)


def _first_success(programs: ConsensusPrograms, solver: str) -> tuple[NDArray[np.float64], str, tuple[str, ...]]:
    """Return normalised duals, the name of the solver that found them, and those that failed before."""
    failed: tuple[str, ...] = ()
    for name in ("newton", "nnls") if solver == "newton" else (solver,):
        try:
            duals = _SOLVERS[name](programs)
        except (ArithmeticError, RuntimeError, ValueError) as error:  # LinAlgError is a ValueError
            reason = f"{type(error).__name__}: {error}"
        else:
            residual = programs.residuals(np.arange(len(duals)), duals).max()
            if residual <= _FAILED_RESIDUAL:  # false for NaN as well
                return duals, name, failed
            reason = f"optimality residual {residual:.1e}"
        failed += (name,)
        _LOG.warning("consensus solver %s failed for %d clients (%s)", name, len(programs.cosines), reason)
    return np.zeros_like(programs.cosines), "mean", failed
