"""One function per property of a consensus solution. All of them compute from the Gram matrix alone."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcome_flwr.core.dual_cone import ConsensusSolution

FloatArray = NDArray[np.float64]
Solve = Callable[[FloatArray], ConsensusSolution]


def norms_of(gram: FloatArray) -> FloatArray:
    return np.sqrt(np.diagonal(gram))


def unit_rows(gram: FloatArray, coefficients: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cosines, and coefficients of g̃_i / ‖g_i‖ in terms of the g_j / ‖g_j‖; clients of norm 0 left out."""
    norms = norms_of(gram)
    present = norms > 0
    block = np.ix_(present, present)
    norms = norms[present]
    cosines = gram[block] / norms[:, None] / norms
    return cosines, coefficients[block] / norms[:, None] * norms


def assert_nobody_hurt(gram: FloatArray, solution: ConsensusSolution, tolerance: float = 1e-9) -> None:
    """⟨g̃_i, g_j⟩ / (‖g_i‖‖g_j‖) ≥ −1e-9 for all i and j."""
    cosines, coefficients = unit_rows(gram, solution.coefficients)
    products = coefficients @ cosines
    assert products.min(initial=0.0) >= -tolerance
    if products.size:
        np.testing.assert_allclose(solution.smallest_product, products.min(), atol=tolerance)


def assert_optimal(gram: FloatArray, solution: ConsensusSolution, limit: float | None, tolerance: float = 1e-8) -> None:
    """The KKT conditions of the (box-constrained) dual program, condition by condition."""
    cosines, coefficients = unit_rows(gram, solution.coefficients)
    duals, products = coefficients - np.eye(len(cosines)), coefficients @ cosines
    upper = np.inf if limit is None else limit
    # Coefficients carry 1 + v̂ on the diagonal, so v̂ itself is known to a few units of rounding only.
    slack = max(tolerance, 1e-14 * np.abs(duals).max(initial=0.0))
    assert duals.min(initial=0.0) >= -slack
    assert duals.max(initial=0.0) <= upper + slack
    assert np.all(products[duals <= slack] >= -tolerance)
    assert np.all(products[duals >= upper - slack] <= tolerance)
    between = (duals > slack) & (duals < upper - slack)
    assert np.abs(products[between]).max(initial=0.0) <= tolerance
    assert solution.residual <= tolerance


def assert_margin(
    gram: FloatArray, solution: ConsensusSolution, client_weights: FloatArray, tolerance: float = 1e-9
) -> None:
    """⟨u, g_j⟩ ≥ p_j ‖g̃_j‖², up to rounding in units of Σ p_i ‖g_i‖ · ‖g_j‖."""
    norms = norms_of(gram)
    present = norms > 0
    norms, weights = norms[present], client_weights[present]
    cosines, coefficients = unit_rows(gram, solution.coefficients)
    products = (weights * norms) @ coefficients @ cosines  # ⟨u, g_j⟩ / ‖g_j‖
    squares = np.einsum("ij,jk,ik->i", coefficients, cosines, coefficients)  # ‖g̃_j‖² / ‖g_j‖²
    assert np.all(products >= weights * norms * squares - tolerance * (weights @ norms))


def assert_not_longer(gram: FloatArray, solution: ConsensusSolution, tolerance: float = 1e-9) -> None:
    """‖g̃_i‖ ≤ ‖g_i‖."""
    cosines, coefficients = unit_rows(gram, solution.coefficients)
    assert np.einsum("ij,jk,ik->i", coefficients, cosines, coefficients).max(initial=0.0) <= 1 + tolerance


def assert_same_vectors(gram: FloatArray, ours: FloatArray, theirs: FloatArray, tolerance: float = 1e-7) -> None:
    """Two coefficient matrices describe the same g̃_i: their difference has norm ≤ tolerance · ‖g_i‖."""
    cosines, difference = unit_rows(gram, ours - theirs)
    squares = np.einsum("ij,jk,ik->i", difference, cosines, difference)
    # A rounded quadratic form of large, cancelling coefficients can be slightly negative.
    assert np.sqrt(np.abs(squares)).max(initial=0.0) <= tolerance


def assert_permutation_equivariant(
    solve: Solve, gram: FloatArray, order: NDArray[np.intp], tolerance: float = 1e-7
) -> None:
    """Reordering the clients reorders the g̃_i, and changes nothing else."""
    block = np.ix_(order, order)
    permuted = solve(gram[block])
    assert_same_vectors(gram[block], permuted.coefficients, solve(gram).coefficients[block], tolerance)


def assert_scale_invariant(solve: Solve, gram: FloatArray, scales: FloatArray, tolerance: float = 1e-7) -> None:
    """Scaling g_j by s_j > 0 scales g̃_j by s_j and leaves every other g̃_i as it is."""
    scaled = solve(scales[:, None] * gram * scales)
    # In terms of the unscaled g_j: g̃_i = Σ_j a_ij s_j g_j, and g̃_i / s_i must be the old one.
    assert_same_vectors(gram, scaled.coefficients * scales / scales[:, None], solve(gram).coefficients, tolerance)


def assert_deterministic(solve: Solve, gram: FloatArray) -> None:
    """Equal input gives equal bytes, and the input is left alone."""
    before = gram.copy()
    first, second = solve(gram), solve(gram.copy())
    assert first.coefficients.tobytes() == second.coefficients.tobytes()
    assert gram.tobytes() == before.tobytes()
