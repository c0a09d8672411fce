"""Properties of consensus solutions, on Gram matrices of every kind that a round can produce."""

import logging
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedcome_flwr.core import dual_cone
from fedcome_flwr.core.dual_cone import solve_consensus
from tests.unit.core import _asserts as asserts
from tests.unit.core import _grams as grams

FloatArray = NDArray[np.float64]

EXACT_SOLVERS = ("newton", "nnls")
SOLVERS = (*EXACT_SOLVERS, "cvxopt")
LIMITS = (None, 0.1, 0.5, 1.0)

each_kind = pytest.mark.parametrize("kind", grams.KINDS, ids=lambda kind: kind.__name__)
each_limit = pytest.mark.parametrize("limit", LIMITS)
each_solver = pytest.mark.parametrize("solver", SOLVERS)


def sample(kind: grams.Kind, m: int = 12, seed: int = 0) -> FloatArray:
    return kind(np.random.default_rng((seed, m)), m)


def need(solver: str) -> None:
    if solver == "cvxopt":
        pytest.importorskip("cvxopt", reason="the cvxopt solver is an optional extra")


# An interior-point method stops near the solution, not on it.
KKT_TOLERANCE = {"newton": 1e-8, "nnls": 1e-8, "cvxopt": 1e-5}
PRODUCT_TOLERANCE = {"newton": 1e-9, "nnls": 1e-9, "cvxopt": 1e-6}


@each_kind
@each_limit
@each_solver
def test_optimal(kind: grams.Kind, limit: float | None, solver: str) -> None:
    need(solver)
    gram = sample(kind)
    solution = solve_consensus(gram, solver=solver, influence_limit=limit)
    assert solution.solver == solver
    assert solution.fallbacks == ()
    assert solution.influence_limit == limit
    asserts.assert_optimal(gram, solution, limit, KKT_TOLERANCE[solver])
    asserts.assert_not_longer(gram, solution, PRODUCT_TOLERANCE[solver])
    if solver in EXACT_SOLVERS:
        assert solution.certified


@each_kind
@each_solver
def test_nobody_hurt_without_limit(kind: grams.Kind, solver: str) -> None:
    need(solver)
    gram = sample(kind, seed=1)
    solution = solve_consensus(gram, solver=solver)
    asserts.assert_nobody_hurt(gram, solution, PRODUCT_TOLERANCE[solver])
    client_weights = np.random.default_rng(2).dirichlet(np.ones(len(gram)))
    asserts.assert_margin(gram, solution, client_weights, PRODUCT_TOLERANCE[solver])


@each_kind
@pytest.mark.parametrize("m", [1, 2, 3, 40])
@pytest.mark.parametrize("limit", [None, 0.3])
def test_newton_at_other_sizes(kind: grams.Kind, m: int, limit: float | None) -> None:
    gram = sample(kind, m)
    solution = solve_consensus(gram, influence_limit=limit)
    assert solution.certified
    assert solution.solver == "newton"
    asserts.assert_optimal(gram, solution, limit)
    if limit is None:
        asserts.assert_nobody_hurt(gram, solution)


@each_kind
@pytest.mark.parametrize("limit", [None, 0.3])
def test_symmetries(kind: grams.Kind, limit: float | None) -> None:
    gram = sample(kind)
    rng = np.random.default_rng(3)
    solve = partial(solve_consensus, influence_limit=limit)
    asserts.assert_permutation_equivariant(solve, gram, rng.permutation(len(gram)))
    asserts.assert_scale_invariant(solve, gram, rng.uniform(0.1, 10.0, len(gram)))
    asserts.assert_deterministic(solve, gram)


@pytest.mark.parametrize("exponent", [-20, -10, 10, 20])
def test_scaling_one_client_changes_no_other(exponent: int) -> None:
    gram = sample(grams.conflicting)
    scales = np.ones(len(gram))
    scales[4] = 10.0**exponent
    asserts.assert_scale_invariant(solve_consensus, gram, scales)


@each_kind
def test_solvers_agree(kind: grams.Kind) -> None:
    gram = sample(kind)
    for limit in LIMITS:
        newton, nnls = (
            solve_consensus(gram, solver=name, influence_limit=limit).coefficients for name in EXACT_SOLVERS
        )
        asserts.assert_same_vectors(gram, newton, nnls)


@settings(max_examples=150, deadline=None)
@given(
    arrays(np.int64, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.integers(-2, 2)),
    st.sampled_from(LIMITS),
)
def test_optimal_on_small_integers(vectors: NDArray[np.int64], limit: float | None) -> None:
    """Exact ties, repeated and dependent vectors at every turn: where active-set methods cycle."""
    gram = (vectors @ vectors.T).astype(np.float64)
    solution = solve_consensus(gram, influence_limit=limit)
    assert solution.solver == "newton"
    asserts.assert_optimal(gram, solution, limit)


@each_solver
@each_limit
def test_agreeing_clients_keep_their_vectors(solver: str, limit: float | None) -> None:
    need(solver)
    gram = sample(grams.agreeing)
    solution = solve_consensus(gram, solver=solver, influence_limit=limit)
    tolerance = {"newton": 0.0, "nnls": 1e-15, "cvxopt": 1e-7}[solver]  # nnls sees the matrix through its factor
    np.testing.assert_allclose(solution.coefficients, np.eye(len(gram)), rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("cosine", [-1.0, -0.999, -0.6, -0.05, 0.0, 0.7, 1.0])
@each_limit
@each_solver
def test_two_clients_closed_form(cosine: float, limit: float | None, solver: str) -> None:
    """g̃_1 = g_1 − ⟨g_1, g_2⟩/‖g_2‖² g_2 in conflict; the factor is cut to c ‖g_1‖/‖g_2‖ under a limit c."""
    need(solver)
    first, second = 3.0, 0.5
    gram = np.array([[first**2, cosine * first * second], [cosine * first * second, second**2]])
    push = min(max(0.0, -cosine), np.inf if limit is None else limit)
    expected = np.array([[1.0, push * first / second], [push * second / first, 1.0]])
    solution = solve_consensus(gram, solver=solver, influence_limit=limit)
    asserts.assert_same_vectors(gram, solution.coefficients, expected, 1e-6)
    if abs(cosine) < 1.0:  # else coefficients are not unique
        np.testing.assert_allclose(solution.coefficients, expected, atol=1e-5)


@pytest.mark.parametrize("limit", [0.05, 0.2, 0.4])
def test_limit_is_the_penalty_form(limit: float) -> None:
    """Against SciPy's SLSQP: min ½‖g̃ − g_i‖² + c‖g_i‖ Σ s_j with ⟨g̃, g_j⟩/‖g_j‖ + s_j ≥ 0, s ≥ 0."""
    m, d = 5, 4
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((m, d)) * rng.uniform(0.5, 2.0, (m, 1)) - 0.3
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    solution = solve_consensus(grams.gram_of(vectors), influence_limit=limit)
    assert solution.at_limit.any()
    for i, target in enumerate(vectors):
        price = limit * np.linalg.norm(target)

        def objective(x: FloatArray, target: FloatArray = target, price: float = price) -> float:
            return float(0.5 * np.sum((x[:d] - target) ** 2) + price * np.sum(x[d:]))

        found = minimize(
            objective,
            np.concatenate([target, np.maximum(0.0, -units @ target)]),
            constraints={"type": "ineq", "fun": lambda x: units @ x[:d] + x[d:]},
            bounds=[(None, None)] * d + [(0.0, None)] * m,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        np.testing.assert_allclose(solution.coefficients[i] @ vectors, found.x[:d], atol=1e-5)


def test_large_limit_changes_nothing() -> None:
    gram = sample(grams.conflicting)
    unlimited = solve_consensus(gram)
    limited = solve_consensus(gram, influence_limit=1e6)
    asserts.assert_same_vectors(gram, limited.coefficients, unlimited.coefficients)
    assert not unlimited.at_limit.any()
    assert not limited.at_limit.any()


def test_a_client_against_all_freezes_the_round_unless_limited() -> None:
    gram = sample(grams.one_against_all)
    frozen = solve_consensus(gram)
    weights = np.full(len(gram), 1 / len(gram))
    limited = solve_consensus(gram, influence_limit=0.3)
    lengths = [float(weights @ s.coefficients @ gram @ s.coefficients.T @ weights) for s in (frozen, limited)]
    assert lengths[1] > 2 * lengths[0]
    assert limited.at_limit[-1]
    assert frozen.veto(weights).argmax() == len(gram) - 1


def test_veto_is_the_weighted_sum_of_duals() -> None:
    solution = solve_consensus(np.array([[4.0, -1.0], [-1.0, 1.0]]))
    np.testing.assert_allclose(solution.duals, [[0.0, 0.5], [0.5, 0.0]])
    np.testing.assert_allclose(solution.veto([0.25, 0.75]), [0.375, 0.125])
    with pytest.raises(ValueError, match=r"client_weights must have shape \(2,\), got \(3,\)"):
        solution.veto([1.0, 2.0, 3.0])


@each_solver
def test_no_clients(solver: str) -> None:
    solution = solve_consensus(np.zeros((0, 0)), solver=solver)
    assert solution.coefficients.shape == (0, 0)
    assert solution.certified
    assert solution.smallest_product == 0.0
    assert solution.at_limit.shape == (0,)


def test_zero_norm_clients_are_ignored() -> None:
    gram = sample(grams.with_zero_clients)
    present = np.flatnonzero(np.diagonal(gram))
    absent = np.flatnonzero(np.diagonal(gram) == 0)
    solution = solve_consensus(gram)
    np.testing.assert_array_equal(solution.coefficients[absent], np.eye(len(gram))[absent])
    np.testing.assert_array_equal(solution.coefficients[np.ix_(present, absent)], 0.0)
    alone = solve_consensus(gram[np.ix_(present, present)])
    np.testing.assert_array_equal(solution.coefficients[np.ix_(present, present)], alone.coefficients)
    assert solve_consensus(np.zeros((3, 3))).smallest_product == 0.0


def test_coefficients_of_one_fixed_round() -> None:
    """Golden values, by hand. g̃_1 = g_1 + 0.2 g_2 = (0.8, 0.4) ⊥ g_2 and g̃_2 = g_2 + g_1 = (0, 2) ⊥ g_1. With
    g_3 the clients positively span the plane: only zero hurts nobody.
    """
    vectors = np.array([[1.0, 0.0], [-1.0, 2.0], [-0.5, -1.0]])
    two = solve_consensus(vectors[:2] @ vectors[:2].T)
    np.testing.assert_allclose(two.coefficients, [[1.0, 0.2], [1.0, 1.0]], atol=1e-12)
    three = solve_consensus(vectors @ vectors.T)
    np.testing.assert_allclose(three.coefficients @ vectors, np.zeros((3, 2)), atol=1e-12)


# --- when a solver fails


def raises(error: Exception) -> Callable[..., FloatArray]:
    def solver(programs: object) -> FloatArray:
        raise error

    return solver


def gives(number: float) -> Callable[..., FloatArray]:
    return lambda programs: np.full_like(programs.cosines, number)


FAILURES = [
    raises(np.linalg.LinAlgError("singular")),
    raises(RuntimeError("too many iterations")),
    raises(ZeroDivisionError()),
    gives(np.nan),
    gives(7.0),
]


@pytest.mark.parametrize("failure", FAILURES)
def test_newton_falls_back_to_nnls(
    failure: Callable[..., FloatArray], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(dual_cone._SOLVERS, "newton", failure)
    gram = sample(grams.conflicting)
    with caplog.at_level(logging.WARNING):
        solution = solve_consensus(gram)
    assert (solution.solver, solution.fallbacks) == ("nnls", ("newton",))
    assert solution.certified
    asserts.assert_optimal(gram, solution, None)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "newton failed for 12 clients" in caplog.text


@pytest.mark.parametrize("failure", FAILURES)
def test_all_fail_and_the_mean_is_left(failure: Callable[..., FloatArray], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SOLVERS:
        monkeypatch.setitem(dual_cone._SOLVERS, name, failure)
    gram = sample(grams.conflicting)
    for asked, tried in (("newton", ("newton", "nnls")), ("nnls", ("nnls",)), ("cvxopt", ("cvxopt",))):
        solution = solve_consensus(gram, solver=asked)
        assert (solution.solver, solution.fallbacks) == ("mean", tried)
        assert not solution.certified
        assert solution.smallest_product < -1e-3
        np.testing.assert_array_equal(solution.coefficients, np.eye(len(gram)))


def test_a_mean_is_never_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dual_cone._SOLVERS, "nnls", raises(RuntimeError()))
    assert not solve_consensus(sample(grams.agreeing), solver="nnls").certified


def test_unexpected_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dual_cone._SOLVERS, "newton", raises(KeyError("a bug")))
    with pytest.raises(KeyError):
        solve_consensus(np.eye(2))


def test_an_indefinite_matrix_is_not_certified() -> None:
    """Cosines of −0.9 among three clients cannot be: no vectors have this Gram matrix."""
    solution = solve_consensus(np.full((3, 3), -0.9) + 1.9 * np.eye(3))
    assert not solution.certified


def test_missing_cvxopt_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxopt", None)
    with pytest.raises(ImportError, match=r'pip install "fedcome-flwr\[cvxopt\]"'):
        solve_consensus(np.eye(2), solver="cvxopt")


def test_cvxopt_options_are_left_alone() -> None:
    cvxopt = pytest.importorskip("cvxopt", reason="the cvxopt solver is an optional extra")
    before = dict(cvxopt.solvers.options)
    solve_consensus(sample(grams.generic), solver="cvxopt")
    assert cvxopt.solvers.options == before


# --- bad arguments

ASYMMETRIC = np.array([[4.0, 1.0, 0.0], [1.0, 9.0, 2.0], [0.0, 2.1, 1.0]])


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (np.zeros(3), r"square matrix, got an array of shape \(3,\)"),
        (np.zeros((2, 3)), r"square matrix, got an array of shape \(2, 3\)"),
        (np.eye(2, dtype=complex), r"real numbers, got dtype complex128"),
        (np.array([["a"]]), r"real numbers, got dtype <U1"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), r"finite, got nan at \(0, 1\)"),
        (np.array([[1.0, 0.0], [0.0, np.inf]]), r"finite, got inf at \(1, 1\)"),
        (np.diag([1.0, -2.0]), r"non-negative diagonal .* got -2.0 at \(1, 1\)"),
        (ASYMMETRIC, r"symmetric, got 2.0 at \(1, 2\) but 2.1 at \(2, 1\)"),
    ],
)
def test_bad_gram(gram: NDArray[np.generic], message: str) -> None:
    with pytest.raises(ValueError, match=f"gram must .*{message}"):
        solve_consensus(gram)


def test_rounding_is_no_asymmetry() -> None:
    gram = sample(grams.badly_scaled)
    gram[2, 7] *= 1 + 1e-12
    assert solve_consensus(gram).certified


@pytest.mark.parametrize("limit", [0.0, -1.0, np.inf, np.nan])
def test_bad_influence_limit(limit: float) -> None:
    with pytest.raises(ValueError, match=f"influence_limit: expected a positive number or None, found {limit}"):
        solve_consensus(np.eye(2), influence_limit=limit)


def test_unknown_solver() -> None:
    with pytest.raises(ValueError, match="solver: expected one of 'newton', 'nnls', 'cvxopt'; found 'simplex'"):
        solve_consensus(np.eye(2), solver="simplex")
