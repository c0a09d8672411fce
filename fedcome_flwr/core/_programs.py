"""The M programs behind the consensus direction, checked, normalised and with their shared matrix split."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

# Of |g_i||g_j|. Sums in float64 agree far better; float32 sums, or a matrix that is no Gram matrix, do not.
_SYMMETRY_TOLERANCE = 1e-9
_TINY = float(np.finfo(np.float64).tiny)
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class ConsensusPrograms:
    r"""The dual programs of all clients, which differ in their linear term only.

    With :math:`n_i = \|g_i\|`, the matrix of cosines :math:`\hat K = K / (n n^\top)` and
    :math:`v_{ij} = \hat v_{ij} n_i / n_j`, the program of client :math:`i` becomes

    .. math:: \hat v_i = \arg\min_{0 \le \hat v \le c}
              \tfrac12 \hat v^\top \hat K \hat v + \hat K_i^\top \hat v .

    Eigenvalues of :math:`\hat K` below :math:`m \varepsilon \lambda_{\max}` are rounding noise, of either
    sign: solvers see the matrix without them, :math:`F F^\top`, for which each program has a solution.

    Attributes
    ----------
    cosines
        :math:`\hat K` as it was given, shape ``[m, m]``: what solutions are judged by.
    hessian
        :math:`F F^\top`, shape ``[m, m]``: what solvers solve; ``cosines`` itself at full rank.
    eigenvalues, eigenvectors
        Of ``hessian``, ascending, shapes ``[m]`` and ``[m, m]`` (columns).
    negligible
        The bound :math:`m \varepsilon \lambda_{\max}`.
    limit
        The upper bound :math:`c`; infinite without one.
    """

    cosines: FloatArray
    hessian: FloatArray
    eigenvalues: FloatArray
    eigenvectors: FloatArray
    negligible: float
    limit: float

    @classmethod
    def of(cls, cosines: FloatArray, limit: float) -> "ConsensusPrograms":
        """Split the matrix of cosines, shape ``[m, m]``, into its eigenvalues."""
        eigenvalues, eigenvectors = np.linalg.eigh(cosines)
        negligible = len(cosines) * _EPSILON * float(eigenvalues[-1])
        kept = eigenvalues > negligible
        hessian = cosines
        if not kept.all():
            eigenvalues = np.where(kept, eigenvalues, 0.0)
            factor = eigenvectors * np.sqrt(eigenvalues)
            hessian = factor @ factor.T
        return cls(cosines, hessian, eigenvalues, eigenvectors, negligible, limit)

    @property
    def factor(self) -> FloatArray:
        """F, shape ``[m, rank]``: the directions of the clients in an orthonormal basis of their span."""
        kept = self.eigenvalues > 0.0
        factor: FloatArray = self.eigenvectors[:, kept] * np.sqrt(self.eigenvalues[kept])
        return factor

    def products(self, duals: FloatArray) -> FloatArray:
        r"""Products :math:`\langle\tilde g_i, g_j\rangle / (\|g_i\|\|g_j\|)`, shape ``[m, m]``."""
        return duals @ self.cosines + self.cosines

    def residual(self, duals: FloatArray) -> float:
        r"""Violation of the optimality (KKT) conditions, the largest over all programs.

        :math:`\max_{ij} |\hat v_{ij} - \mathrm{clip}(\hat v_{ij} - w_{ij}, 0, c)|` with the products
        :math:`w`. It is zero exactly where :math:`w_{ij} \ge 0` at :math:`\hat v_{ij} = 0`, :math:`w_{ij} =
        0` in between and :math:`w_{ij} \le 0` at :math:`\hat v_{ij} = c`.
        """
        moved = np.clip(duals - self.products(duals), 0.0, self.limit)
        return float(np.abs(duals - moved).max(initial=0.0))


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
