"""Linear systems on subsets of one shared matrix: many small ones, each for its own subset, solved in batches."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from ._programs import EPSILON, FloatArray

BoolArray = NDArray[np.bool_]

_BATCH_ENTRIES = 2_000_000  # 16 MB of blocks at a time: larger batches leave the cache and gain nothing
_PADDING = 1.15  # systems up to this much larger share a batch; they are padded to the largest


@dataclass(frozen=True, eq=False)
class FreeSystems:
    r"""Solver of :math:`(\hat K + \sigma)_{PP}\, x_P = r_P` for many free sets P.

    The shift :math:`\sigma`, a few units of rounding, makes duplicated or dependent clients do no harm. What
    it changes, the caller corrects by repeating with what is left.

    Attributes
    ----------
    shifted
        :math:`\hat K + \sigma`, shape ``[m, m]``.
    factor
        Lower Cholesky factor of the matrix with a larger shift, ``m`` units of rounding, shape ``[m, m]``; the
        upper triangle is unused. Inverses need the larger shift.
    indefinite
        Whether the matrix is further from positive semi-definite than rounding explains, as Gram matrices summed
        in float32 are. Then both shifts are the first of 10, 100, ... times the larger one that repairs it.
    """

    shifted: FloatArray
    factor: FloatArray
    indefinite: bool

    @classmethod
    def of(cls, cosines: FloatArray) -> "FreeSystems":
        """Find the shift for a matrix of cosines, shape ``[m, m]``."""
        rounding = EPSILON * float(np.linalg.norm(cosines))
        small, large = 8.0 * rounding, len(cosines) * rounding
        indefinite = False
        while True:
            factor, failed = lapack.dpotrf(plus_diagonal(cosines, large), lower=1, clean=0)
            if not failed:
                return cls(plus_diagonal(cosines, large if indefinite else small), factor, indefinite)
            large, indefinite = 10.0 * large, True

    @cached_property
    def inverse(self) -> FloatArray:
        """Inverse of the matrix behind ``factor``, shape ``[m, m]``."""
        return _inverse(self.factor)

    def solve(self, free: BoolArray, right: FloatArray) -> FloatArray:
        r"""Solutions of all systems, zero outside their free sets, shape ``[n, m]``.

        The work goes with the smaller side of each program: a free set P of more than half of the clients is
        solved on its complement Q. With :math:`B = (\hat K + \sigma)^{-1}`,

        .. math:: x = B (r + \mu), \qquad B_{QQ}\, \mu_Q = -(B r)_Q .

        Parameters
        ----------
        free
            Row i is the i-th free set, shape ``[n, m]``.
        right
            Right-hand sides, shape ``[n, m]``; read on the free sets only.
        """
        right = np.where(free, right, 0.0)
        large = free.sum(axis=1) > 0.5 * free.shape[1]
        if not large.any():
            return _solve_blocks(self.shifted, free, right)
        solutions = np.empty_like(right)
        solutions[~large] = _solve_blocks(self.shifted, free[~large], right[~large])
        multipliers = -_solve_blocks(self.inverse, ~free[large], right[large] @ self.inverse)
        solutions[large] = np.where(free[large], (right[large] + multipliers) @ self.inverse, 0.0)
        return solutions


def plus_diagonal(matrix: FloatArray, number: float) -> FloatArray:
    """A copy of a square matrix with ``number`` added to its diagonal."""
    shifted = matrix.copy()
    shifted.flat[:: len(matrix) + 1] += number
    return shifted


def inverse(matrix: FloatArray) -> FloatArray:
    """Inverse of a positive definite matrix.

    Raises
    ------
    numpy.linalg.LinAlgError
        The matrix is not positive definite.
    """
    factor, failed = lapack.dpotrf(matrix, lower=1, clean=0)
    if failed:
        raise np.linalg.LinAlgError(f"minor {failed} of {len(matrix)} is not positive definite")
    return _inverse(factor)


def _inverse(factor: FloatArray) -> FloatArray:
    half, _ = lapack.dpotri(factor, lower=1)
    lower: FloatArray = np.tril(half)
    return lower + np.tril(lower, -1).T


def _solve_blocks(matrix: FloatArray, subsets: BoolArray, right: FloatArray) -> FloatArray:
    """Solve one system per row: on the principal block of ``matrix`` that the row of ``subsets`` names."""
    solutions = np.zeros_like(right)
    sizes = subsets.sum(axis=1)
    order = np.argsort(sizes, kind="stable")
    start = int(np.searchsorted(sizes[order], 1))
    while start < len(order):
        largest = int(_PADDING * sizes[order[start]]) + 4
        end = start + max(1, _BATCH_ENTRIES // largest**2)
        end = start + int(np.searchsorted(sizes[order[start:end]], largest, side="right"))
        batch = order[start:end]
        solutions[batch] = _solve_batch(matrix, subsets[batch], right[batch])
        start = end
    return solutions


def _solve_batch(matrix: FloatArray, subsets: BoolArray, right: FloatArray) -> FloatArray:
    sizes = subsets.sum(axis=1)
    largest = int(sizes.max())
    rows, columns = np.nonzero(subsets)
    places = np.arange(len(columns)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    members = np.zeros((len(subsets), largest), dtype=np.intp)
    members[rows, places] = columns
    # One flat index is gathered several times faster than a pair of them.
    blocks = matrix.ravel().take(members[:, :, None] * len(matrix) + members[:, None, :])
    padding = np.arange(largest) >= sizes[:, None]
    if padding.any():
        blocks[padding] = 0.0
        blocks.swapaxes(1, 2)[padding] = 0.0
        blocks[:, np.arange(largest), np.arange(largest)] += padding
    targets = np.zeros((len(subsets), largest, 1))
    targets[rows, places, 0] = right[rows, columns]
    solutions = np.zeros_like(right)
    solutions[rows, columns] = np.linalg.solve(blocks, targets)[rows, places, 0]
    return solutions
