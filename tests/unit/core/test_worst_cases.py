"""Gram matrices on which solvers stall: every program must still be solved, by newton itself, and certified."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcome_flwr.core._free_sets import FreeSystems
from fedcome_flwr.core._pivoting import pivot
from fedcome_flwr.core._programs import ConsensusPrograms, norms_and_cosines
from fedcome_flwr.core._splitting import split
from fedcome_flwr.core.dual_cone import solve_consensus
from tests.unit.core import _asserts as asserts
from tests.unit.core import _grams as grams

FloatArray = NDArray[np.float64]

seeds = st.integers(0, 2**32 - 1)
limits = st.sampled_from([None, 0.1, 0.3])


def assert_solved(gram: FloatArray, limit: float | None) -> None:
    solution = solve_consensus(gram, influence_limit=limit)
    assert (solution.solver, solution.fallbacks) == ("newton", ())
    assert solution.certified
    asserts.assert_optimal(gram, solution, limit)
    if limit is None:
        asserts.assert_nobody_hurt(gram, solution)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(4, 70), st.sampled_from([1.8, 2.0, 3.0, 10.0]), limits)
def test_more_clients_than_dimensions(seed: int, m: int, ratio: float, limit: float | None) -> None:
    """Up to about m = 2 d the dual cone of Gaussian vectors is often thin but not zero."""
    assert_solved(grams.gram_of(np.random.default_rng(seed).standard_normal((m, max(1, int(m / ratio))))), limit)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(2, 70), st.floats(-8.0, -1.0), limits)
def test_two_opposed_camps(seed: int, m: int, exponent: float, limit: float | None) -> None:
    """Clients within 10^exponent of plus or minus one vector: cosines within its square of ± 1."""
    rng = np.random.default_rng(seed)
    camp = np.where(np.arange(m) % 2, -1.0, 1.0)
    vectors = np.outer(camp, rng.standard_normal(2 * m)) + 10.0**exponent * rng.standard_normal((m, 2 * m))
    assert_solved(grams.gram_of(vectors), limit)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(3, 70), st.floats(0.0, 6.0), st.booleans(), limits)
def test_bad_conditions_and_scales(seed: int, m: int, exponent: float, scaled: bool, limit: float | None) -> None:
    """Condition numbers up to 1e12 and norms from 1e-10 to 1e10."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    scales = 10.0 ** rng.uniform(-10.0, 10.0, (m, 1)) if scaled else 1.0
    assert_solved(grams.gram_of(basis * np.logspace(0.0, -exponent, m) * scales), limit)


@pytest.mark.parametrize("kind", [grams.duplicated, grams.opposed, grams.one_against_all, grams.zero_sum])
@pytest.mark.parametrize("limit", [None, 0.3])
@pytest.mark.parametrize("m", [70, 150])
def test_dependent_clients(kind: grams.Kind, limit: float | None, m: int) -> None:
    assert_solved(kind(np.random.default_rng(m), m), limit)


@pytest.mark.parametrize("m", [30, 90, 200])
def test_a_gram_matrix_summed_in_float32_is_solved_to_its_own_accuracy(m: int) -> None:
    """It is indefinite by about 1e-7, so 1e-9 cannot be certified; the residual says what was reached."""
    vectors = np.random.default_rng(m).standard_normal((m, m // 2)).astype(np.float32)
    solution = solve_consensus((vectors @ vectors.T).astype(np.float64))
    assert solution.solver == "newton"
    assert not solution.certified
    assert solution.residual <= 1e-5


@pytest.mark.parametrize("width", [1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9])
def test_an_almost_empty_cone(width: float) -> None:
    """Two clients within this angle of opposition, and one against what they share: duals of 1 / (2 width).

    Below 1e-6 rounding alone is near the certificate, which then may be missing but must not be wrong.
    """
    vectors = np.array([[1.0, width], [-1.0, width], [0.0, -1.0]])
    gram = vectors @ vectors.T
    solution = solve_consensus(gram)
    assert solution.certified or width < 1e-6
    if solution.certified:
        cosines, coefficients = asserts.unit_rows(gram, solution.coefficients)
        rounding = 1e-15 * np.abs(coefficients).max()
        assert (coefficients @ cosines).min() >= -1e-9 - rounding


# --- the parts


def cosines_of(kind: grams.Kind, m: int) -> FloatArray:
    return norms_and_cosines(kind(np.random.default_rng(m), m))[1]


@pytest.mark.parametrize("kind", [grams.generic, grams.conflicting], ids=["generic", "conflicting"])
def test_systems_of_every_size_on_both_sides(kind: grams.Kind) -> None:
    m = 30
    cosines = cosines_of(kind, m)
    rng = np.random.default_rng(0)
    free = np.arange(m) < np.arange(m + 1)[:, None]  # sizes 0 to m
    free = rng.permuted(free, axis=1)
    right = rng.standard_normal(free.shape)
    solutions = FreeSystems.of(cosines).solve(free, right)
    assert not solutions[~free].any()
    for members, target, solution in zip(free, right, solutions, strict=True):
        exact = np.linalg.solve(cosines[np.ix_(members, members)], target[members])
        np.testing.assert_allclose(solution[members], exact, atol=1e-10)


def test_an_indefinite_matrix_is_told_and_repaired() -> None:
    cosines = cosines_of(grams.low_rank, 30)
    assert not FreeSystems.of(cosines).indefinite
    systems = FreeSystems.of(cosines - 1e-6 * np.eye(30))
    assert systems.indefinite
    shift = systems.shifted[0, 0] - (1.0 - 1e-6)
    assert 1e-6 <= shift <= 1e-4


@pytest.mark.parametrize("limit", [np.inf, 0.3])
@pytest.mark.parametrize("m", [20, 80])  # 80: only the columns that a sample needs
def test_splitting_tends_to_the_solution(limit: float, m: int) -> None:
    programs = ConsensusPrograms(cosines_of(grams.generic, m), limit)
    rows = np.arange(m)
    errors = [
        programs.residuals(rows, np.clip(split(programs, rows, np.zeros((m, m)), 0.6, steps), 0.0, limit)).max()
        for steps in (10, 40)
    ]
    assert errors[1] < 1e-2 * errors[0]


def test_splitting_moves_nothing_where_nobody_conflicts() -> None:
    programs = ConsensusPrograms(cosines_of(grams.agreeing, 80), np.inf)
    moved = split(programs, np.arange(80), np.zeros((80, 80)), 0.6, 40)
    assert moved.max() <= 0.0


@pytest.mark.parametrize("kind", grams.KINDS[:-1], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("limit", [np.inf, 0.3])
def test_pivoting_alone_solves_everything(kind: grams.Kind, limit: float) -> None:
    cosines = cosines_of(kind, 20)
    present = np.diagonal(cosines) > 0.0
    programs = ConsensusPrograms(cosines[np.ix_(present, present)], limit)
    size = int(present.sum())
    systems, rows = FreeSystems.of(programs.cosines), np.arange(size)
    duals = pivot(programs, systems, rows, np.zeros((size, size)), 1e-11)
    assert programs.residuals(rows, duals).max() <= 1e-8
