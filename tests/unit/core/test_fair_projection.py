import numpy as np
import pytest

from fedcome_flwr.core import Cohort, FairProjection, fedfv
from fedcome_flwr.core.weighting import combined_norm


def cohort(losses, *, weights=None, server_round=1, ages=()) -> Cohort:
    count = len(losses)
    return Cohort(
        [f"{i:02d}" for i in range(count)],
        np.full(count, 1 / count) if weights is None else np.array(weights),
        np.array(losses, dtype=float),
        server_round,
        ages,
    )


def vectors(count: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, size))


def test_two_clients_by_hand():
    """g = (1, 0) and (-1, 1): the first, of the smaller loss, loses its part against the second, which is kept."""
    g = np.array([[1.0, 0.0], [-1.0, 1.0]])
    found = FairProjection(alpha=0.5, tau=0).weigh(g @ g.T, cohort([1, 2])).coefficients @ g
    direction = np.array([0.5, 0.5]) + np.array([-1.0, 1.0])
    np.testing.assert_allclose(found, direction / np.linalg.norm(direction) * np.linalg.norm([0.0, 0.5]))


def test_without_conflict_it_is_the_weighted_mean():
    g = np.abs(vectors(5, 8, 0))
    weights = [0.3, 0.3, 0.2, 0.1, 0.1]
    found = FairProjection(tau=0).weigh(g @ g.T, cohort(range(5), weights=weights)).coefficients
    np.testing.assert_allclose(found, weights, rtol=1e-12)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("reading", ["paper", "code"])
def test_the_norm_is_that_of_the_mean(seed, reading):
    g = vectors(9, 5, seed)
    weighting = FairProjection(0.2, 2, reading)
    ages = [1, 2, 1]
    found = weighting.weigh(g @ g.T, cohort(range(6), server_round=5, ages=ages)).coefficients
    mean = np.concatenate([np.full(6, 1 / 6), np.zeros(3)])
    assert combined_norm(g @ g.T, found) == pytest.approx(combined_norm(g @ g.T, mean), rel=1e-9)
    assert not np.allclose(found / np.linalg.norm(found), mean / np.linalg.norm(mean))


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_clients_does_not_matter(seed):
    g, losses = vectors(7, 4, seed), np.random.default_rng(seed).permutation(7)
    order = np.random.default_rng(seed + 1).permutation(7)
    one = FairProjection(0.3, 0).weigh(g @ g.T, cohort(losses)).coefficients
    other = FairProjection(0.3, 0).weigh(g[order] @ g[order].T, cohort(losses[order])).coefficients
    np.testing.assert_allclose(other, one[order], atol=1e-12)


def test_all_kept_is_the_mean_and_none_kept_projects_everybody():
    g = np.array([[1.0, 0.2], [-1.0, 0.3], [0.1, -0.4]])
    kept = FairProjection(alpha=1.0, tau=0).weigh(g @ g.T, cohort([1, 2, 3])).coefficients
    np.testing.assert_allclose(kept, 1 / 3)
    free = FairProjection(alpha=0.0, tau=0).weigh(g @ g.T, cohort([1, 2, 3])).coefficients
    assert not np.allclose(free, 1 / 3)


def test_no_client_of_a_past_round_it_looked_at_last_is_hurt_when_it_stood_alone():
    g = np.array([[1.0, 0.0], [-1.0, 1.0]])
    weighting = FairProjection(tau=1)
    early = weighting.weigh(g @ g.T, cohort([1], server_round=1, ages=[1])).coefficients
    np.testing.assert_allclose(early, [1, 0])  # one round has not been played yet
    late = weighting.weigh(g @ g.T, cohort([1], server_round=2, ages=[1])).coefficients @ g
    np.testing.assert_allclose(late, [np.sqrt(0.5), np.sqrt(0.5)])


def test_the_codes_reading_of_one_round_looks_at_this_round_only():
    g = np.array([[3.0, 0.0], [-1.0, 1.0], [-5.0, 0.1]])
    weighting = FairProjection(alpha=1.0, tau=1, reading="code")
    absent = weighting.weigh(g @ g.T, cohort([1, 2], server_round=9, ages=[1])).coefficients
    alone = weighting.weigh(g[:2] @ g[:2].T, cohort([1, 2], server_round=9)).coefficients
    np.testing.assert_allclose(absent, [*alone, 0])
    assert (alone @ g[:2]) @ g[1] == pytest.approx(0, abs=1e-12)  # but the mean no longer conflicts with its own


def test_zero_pseudo_gradients_are_ordinary():
    assert not FairProjection().weigh(np.zeros((3, 3)), cohort([1, 2, 3])).coefficients.any()
    opposed = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert not FairProjection(alpha=0.0).weigh(opposed, cohort([1, 2])).coefficients.any()


@pytest.mark.parametrize(
    ("options", "rounds"),
    [((0.1, 0, "paper"), 0), ((0.1, 3, "paper"), 3), ((0.1, 3, "code"), 2), ((0.1, 0, "code"), 0)],
)
def test_how_long_pseudo_gradients_are_kept(options, rounds):
    assert FairProjection(*options).remember_rounds == rounds
    assert fedfv(*options[:2], reading=options[2]).remember_rounds == rounds


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": -0.1}, "alpha: expected a number in"),
        ({"alpha": 1.1}, "alpha: expected a number in"),
        ({"tau": -1}, "tau: expected at least 0"),
        ({"reading": "other"}, "reading: expected one of 'paper', 'code'"),
    ],
)
def test_bad_settings(options, text):
    with pytest.raises(ValueError, match=text):
        FairProjection(**options)
