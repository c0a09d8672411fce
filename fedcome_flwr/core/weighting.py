"""The waist: Gram matrix in, one coefficient per pseudo-gradient out.

A weighting is any value with a method ``weigh(gram, cohort) -> Combination``. Everything before it only has to give
inner products, everything after it only has to add up arrays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .dual_cone import ConsensusSolution, check_settings, solve_consensus


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who the rows of a Gram matrix belong to.

    Attributes
    ----------
    keys
        The clients' keys, sorted.
    client_weights
        Importance of each client, shape ``[m]``, sum 1.
    train_losses
        Loss of the broadcast model on each client's data before training, shape ``[m]``; NaN where not reported.
    server_round
        Number of the round, from 1.
    absent_ages
        For methods that remember clients' last pseudo-gradients (:attr:`Method.remember_rounds`): the Gram matrix
        then has further rows for clients that are not in this round, and these are the numbers of rounds since each of
        them was, 1 or more.
    """

    keys: Sequence[str]
    client_weights: NDArray[np.float64]
    train_losses: NDArray[np.float64]
    server_round: int = 1
    absent_ages: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Combination:
    """What a weighting decides.

    Attributes
    ----------
    coefficients
        Weight of each pseudo-gradient in the direction :math:`u = \\sum_i c_i g_i`, one for each row of the Gram
        matrix.
    solution
        The consensus programs behind the coefficients, for those weightings that solve them.
    projections
        For weightings that change every client's pseudo-gradient before they average: row i holds the coefficients of
        what became of client i's, :math:`\\tilde g_i`, one column for each row of the Gram matrix.
    """

    coefficients: NDArray[np.float64]
    solution: ConsensusSolution | None = None
    projections: NDArray[np.float64] | None = None


class Weighting(Protocol):
    """Gram matrix in, one coefficient per pseudo-gradient out."""

    def weigh(self, gram: NDArray[np.float64], cohort: Cohort) -> Combination:
        """Weigh the pseudo-gradients whose inner products are ``gram``, shape ``[m, m]``."""


@dataclass(frozen=True)
class Mean:
    """The mean by client weights: FedAvg (McMahan et al. 2017, algorithm 1)."""

    def weigh(self, gram: NDArray[np.float64], cohort: Cohort) -> Combination:
        """The client weights themselves."""
        return Combination(cohort.client_weights)


@dataclass(frozen=True)
class Consensus:
    r"""The mean of the dual-cone projections: FedCOME (equations 3 to 6).

    With row i of A the coefficients of client i's projection :math:`\tilde g_i = G a_i` and client weights p, the
    coefficients are :math:`A^\top p`, and :math:`\langle u, g_j \rangle \ge p_j \lVert \tilde g_j \rVert^2 \ge 0`
    for every client j (without an influence limit).

    Parameters
    ----------
    solver
        ``"newton"``, ``"nnls"`` or ``"cvxopt"``, see :func:`solve_consensus`.
    influence_limit
        Bound on every normalised dual variable, so that no single client can veto a direction; gives up the
        guarantee. ``None``: no bound.
    """

    solver: str = "newton"
    influence_limit: float | None = None

    def __post_init__(self) -> None:
        check_settings(self.solver, self.influence_limit)

    def weigh(self, gram: NDArray[np.float64], cohort: Cohort) -> Combination:
        """Solve the clients' programs and average the projections."""
        solution = solve_consensus(gram, solver=self.solver, influence_limit=self.influence_limit)
        return Combination(cohort.client_weights @ solution.coefficients, solution, solution.coefficients)


@dataclass(frozen=True)
class EqualStep:
    """One weighting's direction at the norm of another's: a control that separates direction from step length.

    A direction of norm zero stays zero. The consensus programs' certificate speaks of the unscaled direction, so it
    is not passed on.
    """

    direction: Weighting = field(default_factory=Consensus)
    length: Weighting = field(default_factory=Mean)

    def weigh(self, gram: NDArray[np.float64], cohort: Cohort) -> Combination:
        """Scale the coefficients of ``direction`` to the norm that ``length`` would have."""
        coefficients = self.direction.weigh(gram, cohort).coefficients
        wanted = combined_norm(gram, self.length.weigh(gram, cohort).coefficients)
        found = combined_norm(gram, coefficients)
        return Combination((wanted / found if found > 0 else 0.0) * coefficients)


def combined_norm(gram: NDArray[np.float64], coefficients: NDArray[np.float64]) -> float:
    r"""Norm of the combination, :math:`\sqrt{c^\top K c}`, and 0 where that cannot be told from 0.

    Long vectors that cancel leave a square of the size of their products' rounding, at most
    :math:`m \epsilon \lvert c \rvert^\top \lvert K \rvert \lvert c \rvert`.
    """
    square = float(coefficients @ gram @ coefficients)
    sizes = np.abs(coefficients)
    rounding = len(gram) * float(np.finfo(np.float64).eps) * float(sizes @ np.abs(gram) @ sizes)
    return math.sqrt(square) if square > rounding or math.isinf(square) else 0.0
