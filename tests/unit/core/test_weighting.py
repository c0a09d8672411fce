import numpy as np
import pytest

from fedcome_flwr.core import Cohort, Consensus, EqualStep, Mean, fedcome
from fedcome_flwr.core.methods import Method, equal_step_control, fedavg
from fedcome_flwr.core.weighting import combined_norm


def cohort(weights: list[float]) -> Cohort:
    count = len(weights)
    return Cohort([str(i) for i in range(count)], np.array(weights), np.full(count, np.nan))


def conflicting(seed: int = 0, clients: int = 6, size: int = 4) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(clients, size)) + 0.2
    return vectors @ vectors.T


def test_mean():
    gram = conflicting(clients=3)
    np.testing.assert_array_equal(Mean().weigh(gram, cohort([0.5, 0.3, 0.2])).coefficients, [0.5, 0.3, 0.2])


@pytest.mark.parametrize("seed", range(10))
def test_consensus_hurts_nobody_by_more_than_its_bound(seed):
    gram, weights = conflicting(seed), np.array([0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
    combination = Consensus().weigh(gram, cohort(list(weights)))
    assert combination.solution is not None
    projections = combination.solution.coefficients
    bounds = weights * np.einsum("ij,jk,ik->i", projections, gram, projections)
    assert np.all(gram @ combination.coefficients >= bounds - 1e-9 * np.diagonal(gram).max())


def test_consensus_without_conflict_is_the_mean():
    vectors = np.abs(np.random.default_rng(0).normal(size=(5, 8)))
    weights = [0.4, 0.3, 0.1, 0.1, 0.1]
    found = Consensus().weigh(vectors @ vectors.T, cohort(weights)).coefficients
    np.testing.assert_allclose(found, weights, atol=1e-12)


@pytest.mark.parametrize(("direction", "length"), [(Consensus(), Mean()), (Mean(), Consensus())])
def test_equal_step_controls_have_one_direction_and_the_others_length(direction, length):
    gram, group = conflicting(), cohort([1 / 6] * 6)
    found = EqualStep(direction, length).weigh(gram, group).coefficients
    one, other = direction.weigh(gram, group).coefficients, length.weigh(gram, group).coefficients
    assert combined_norm(gram, found) == pytest.approx(combined_norm(gram, other))
    assert found @ gram @ one == pytest.approx(combined_norm(gram, found) * combined_norm(gram, one))


def test_an_equal_step_control_of_a_vanishing_direction_stays_zero():
    opposed = np.array([[1.0, -1.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(EqualStep().weigh(opposed, cohort([0.5, 0.5])).coefficients, [0.0, 0.0])


def test_methods_are_values():
    assert fedcome() == fedcome()
    assert fedcome(solver="nnls") != fedcome()
    assert equal_step_control("mean-at-consensus-norm").weighting == EqualStep(Mean(), Consensus())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fedcome(solver="simplex"), "solver: expected one of 'newton', 'nnls', 'cvxopt'; found 'simplex'"),
        (lambda: fedcome(influence_limit=-1.0), "influence_limit: expected a positive number or None, found -1.0"),
        (lambda: fedcome(client_weights="equal"), "client_weights: expected one of 'examples', 'uniform'"),
        (lambda: fedcome(server_step="fast"), "server_step: expected one of 'adaptive'"),
        (lambda: fedcome(server_step=0.0), "server_step: expected a positive number"),
        (lambda: fedcome(max_client_norm=0), "max_client_norm: expected a positive number"),
        (lambda: fedcome(max_update_norm=float("nan")), "max_update_norm: expected a positive number"),
        (lambda: fedavg("equal"), "client_weights: expected one of"),
        (lambda: equal_step_control("fast"), "equal-step control: expected one of 'consensus-at-mean-norm'"),
        (lambda: Method("mine", Mean(), server_step=float("inf")), "server_step: expected a positive number"),
    ],
)
def test_bad_settings_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()
