"""The M programs behind the consensus direction, checked and normalised."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

# Of |g_i||g_j|. Sums in float64 agree far better; float32 sums, or a matrix that is no Gram matrix, do not.
_SYMMETRY_TOLERANCE = 1e-9
# From this size and below this share of non-zero duals, the sparse product is faster than the dense one.
_LARGE, _SPARSE = 200_000, 0.1
_TINY = float(np.finfo(np.float64).tiny)
EPSILON: Final = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class ConsensusPrograms:
    r"""The dual programs of all clients, which differ in their linear term only.

    With :math:`n_i = \|g_i\|`, the matrix of cosines :math:`\hat K = K / (n n^\top)` and
    :math:`v_{ij} = \hat v_{ij} n_i / n_j`, the program of client :math:`i` becomes

    .. math:: \hat v_i = \arg\min_{0 \le \hat v \le c}
              \tfrac12 \hat v^\top \hat K \hat v + \hat K_i^\top \hat v .

    Attributes
    ----------
    cosines
        :math:`\hat K`, shape ``[m, m]``.
    limit
        The upper bound :math:`c`; infinite without one.
    """

    cosines: FloatArray
    limit: float

    @cached_property
    def factor(self) -> FloatArray:
        r"""F with :math:`\hat K = F F^\top`, shape ``[m, rank]``: the clients' directions in an orthonormal basis.

        Eigenvalues below :math:`m \varepsilon \lambda_{\max}` are rounding noise, of either sign, and left out.
        """
        eigenvalues, eigenvectors = np.linalg.eigh(self.cosines)
        kept = eigenvalues > len(self.cosines) * EPSILON * eigenvalues[-1]
        factor: FloatArray = eigenvectors[:, kept] * np.sqrt(eigenvalues[kept])
        return factor

    def products(self, rows: IndexArray, duals: FloatArray) -> FloatArray:
        r"""Products :math:`\langle\tilde g_i, g_j\rangle / (\|g_i\|\|g_j\|)`, shape ``[n, m]``.

        Parameters
        ----------
        rows
            The programs i, shape ``[n]``.
        duals
            Their normalised duals, shape ``[n, m]``.
        """
        if duals.size > _LARGE and np.count_nonzero(duals) < _SPARSE * duals.size:
            moves = np.asarray(csr_array(duals) @ self.cosines, dtype=np.float64)
        else:
            moves = duals @ self.cosines
        moves += self.cosines[rows]
        return moves

    def residuals(self, rows: IndexArray, duals: FloatArray) -> FloatArray:
        r"""Violation of the optimality (KKT) conditions of each program, shape ``[n]``.

        :math:`\max_j |\hat v_{ij} - \mathrm{clip}(\hat v_{ij} - w_{ij}, 0, c)|` with the products
        :math:`w`. It is zero exactly where :math:`w_{ij} \ge 0` at :math:`\hat v_{ij} = 0`, :math:`w_{ij} =
        0` in between and :math:`w_{ij} \le 0` at :math:`\hat v_{ij} = c`.
        """
        return self.violations(duals, self.products(rows, duals))

    def violations(self, duals: FloatArray, products: FloatArray) -> FloatArray:
        """The same for known products, shape ``[n]``."""
        violations: FloatArray = np.abs(duals - np.clip(duals - products, 0.0, self.limit)).max(axis=1, initial=0.0)
        return violations


def checked_gram(gram: ArrayLike) -> FloatArray:
    r"""Return ``gram`` as a float64 array, or say which entry keeps it from being a Gram matrix.

    It must be a square, finite, real matrix with a non-negative diagonal, symmetric up to
    :math:`10^{-9} \sqrt{K_{ii} K_{jj}}`. That it is positive semi-definite is not checked: rounding alone
    breaks that, and the certificate of a solution covers what matters.
    """
    given = np.asarray(gram)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise ValueError(f"gram must be a square matrix, got an array of shape {given.shape}")
    if given.dtype.kind not in "fiu":
        raise ValueError(f"gram must hold real numbers, got dtype {given.dtype}")
    checked = given.astype(np.float64)
    for i, j in np.argwhere(~np.isfinite(checked))[:1]:
        raise ValueError(f"gram must be finite, got {checked[i, j]} at ({i}, {j})")
    diagonal = np.diagonal(checked)
    for (i,) in np.argwhere(diagonal < 0.0)[:1]:
        raise ValueError(f"gram must have a non-negative diagonal (squared norms), got {diagonal[i]} at ({i}, {i})")
    norms = np.sqrt(diagonal)
    # Halves, since the difference of two entries near the largest float64 overflows.
    gaps = np.abs(0.5 * checked - 0.5 * checked.T)
    allowed = 0.5 * _SYMMETRY_TOLERANCE * np.outer(norms, norms) + _TINY
    for i, j in np.argwhere(gaps > allowed)[:1]:
        raise ValueError(f"gram must be symmetric, got {checked[i, j]} at ({i}, {j}) but {checked[j, i]} at ({j}, {i})")
    return checked


def norms_and_cosines(gram: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Split a checked Gram matrix into norms, shape ``[m]``, and cosines between clients, shape ``[m, m]``.

    Norms whose square is zero or subnormal, hence without a usable direction, come back as 0, with cosines 0.
    """
    squares = np.diagonal(gram)
    norms = np.where(squares < _TINY, 0.0, np.sqrt(squares))
    divisors = np.where(norms > 0.0, norms, np.inf)
    # Row first, column then: the product of two norms can leave the range of float64, these steps cannot.
    halves = gram / divisors[:, None] / divisors
    cosines = 0.5 * (halves + halves.T)
    np.fill_diagonal(cosines, np.where(norms > 0.0, 1.0, 0.0))
    return norms, cosines
