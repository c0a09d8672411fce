"""FedFV's projections, in the geometry of the Gram matrix."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .checks import check_at_least, check_choice, check_share
from .weighting import Cohort, Combination, combined_norm

TauReading = Literal["paper", "code"]


@dataclass(frozen=True)
class FairProjection:
    r"""Projections in the order of the losses: FedFV (Wang et al. 2021, algorithms 1 to 3).

    Internal conflicts: in the order of rising loss each pseudo-gradient is projected off every other client's
    original that it has a negative inner product with; those of the clients with the largest losses stay as they
    are. External conflicts: the mean of these is projected, round by round, oldest first, off the sum of those last
    pseudo-gradients of that round's clients that it conflicts with. Then the mean gets the norm of the mean of the
    originals. All of it only needs inner products, so that the result is one coefficient per pseudo-gradient.

    Parameters
    ----------
    alpha
        Share of clients, of those with the largest losses, whose pseudo-gradients are kept: the clients from
        position :math:`\lceil (m - 1)(1 - \alpha) \rceil` on in the order of rising loss, at least one; none for 0.
    tau
        Number of rounds that external conflicts are looked for in. Before so many rounds were played there is no
        external step, as published.
    reading
        Which rounds these are. ``"paper"`` (algorithm 3, and the code published with it): the ``tau`` rounds before
        this one, in which clients of this round have no part, since their last pseudo-gradient is this round's.
        ``"code"`` (the authors' repository since August 2021): this round and the ``tau - 1`` before it, so that
        ``tau = 1`` projects off this round's own originals and sees no absent client.
    """

    alpha: float = 0.1
    tau: int = 1
    reading: TauReading = "paper"

    def __post_init__(self) -> None:
        check_share("alpha", self.alpha)
        check_at_least("tau", self.tau, 0)
        check_choice("reading", self.reading, get_args(TauReading))

    @property
    def remember_rounds(self) -> int:
        """For how many rounds clients' pseudo-gradients have to be kept."""
        return self.tau if self.reading == "paper" else max(0, self.tau - 1)

    def weigh(self, gram: NDArray[np.float64], cohort: Cohort) -> Combination:
        """Project the cohort's pseudo-gradients off each other, and their mean off absent clients'."""
        count = len(cohort.keys)
        projected = np.zeros((count, len(gram)))
        projected[:, :count] = self._internal(gram[:count, :count], cohort.train_losses)
        coefficients = cohort.client_weights @ projected
        ages = np.concatenate([np.zeros(count, dtype=int), np.asarray(cohort.absent_ages, dtype=int)])
        if cohort.server_round > self.tau or (self.reading == "code" and cohort.server_round == self.tau):
            oldest, newest = (self.tau, 1) if self.reading == "paper" else (self.tau - 1, 0)
            for age in range(oldest, newest - 1, -1):
                coefficients = _external(gram, coefficients, ages == age)
        mean = np.zeros(len(gram))
        mean[:count] = cohort.client_weights
        norm = combined_norm(gram, coefficients)
        scale = combined_norm(gram, mean) / norm if norm > 0 else 0.0
        return Combination(scale * coefficients, projections=projected)

    def _internal(self, gram: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Row k: the coefficients of client k's projected pseudo-gradient."""
        count = len(gram)
        order = np.argsort(losses, kind="stable")  # ties by key
        kept = order[math.ceil((count - 1) * (1 - self.alpha)) :] if self.alpha > 0 else order[:0]
        free = np.ones(count, dtype=bool)
        free[kept] = False
        coefficients = np.eye(count)
        for other in order:
            products = coefficients @ gram[:, other]
            conflicting = free & (products < 0) & (np.arange(count) != other)
            coefficients[conflicting, other] -= products[conflicting] / gram[other, other]
        return coefficients


def _external(
    gram: NDArray[np.float64], coefficients: NDArray[np.float64], candidates: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The combination projected off the sum of those candidates that it conflicts with."""
    opponents = (candidates & (gram @ coefficients < 0)).astype(np.float64)
    product = float(opponents @ gram @ coefficients)
    if product >= 0:
        return coefficients
    return coefficients - product / float(opponents @ gram @ opponents) * opponents
