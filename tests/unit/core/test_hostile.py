"""Hostile and broken clients: what the core does with each, line by line as docs/robustness.md states it."""

import math

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from fedcome_flwr.core import (
    ClientUpdate,
    ConsensusSelection,
    ServerState,
    UniformSelection,
    aggregate_round,
    fedavg,
    fedcome,
    solve_consensus,
)
from tests.unit.core._updates import PARAMETERS, model

SIZE = 40
HONEST = 9


def pseudo_gradients(count: int = HONEST, seed: int = 0) -> np.ndarray:
    """Clients that share a direction and conflict otherwise, shape ``[count, SIZE]``."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, SIZE)) + 0.5


def updates_of(gradients, dtype="float64", **values) -> list[ClientUpdate]:
    return [
        ClientUpdate(f"c{i:02d}", {"w": (-g).astype(dtype)}, **{"num_examples": 10.0, **values})
        for i, g in enumerate(gradients)
    ]


def play(updates, method=None, dtype="float64", state=None):
    """A round from the model 0, so that the new model is minus the step."""
    reference = {"w": np.zeros(SIZE, dtype=dtype)}
    method = method or fedcome(server_step=1.0)
    return aggregate_round(state or ServerState(), reference, updates, method, selector=ConsensusSelection())


def step_of(outcome) -> np.ndarray:
    return -np.asarray(outcome.arrays["w"], dtype=np.float64)


def with_stranger(gradient, gradients=None) -> np.ndarray:
    """The honest clients, and a hostile one that comes last."""
    return np.vstack([pseudo_gradients() if gradients is None else gradients, gradient])


def projections(gradients) -> np.ndarray:
    """Each client's vector that nobody objects to, in rows."""
    return solve_consensus(gradients @ gradients.T).coefficients @ gradients


STRANGER = f"c{HONEST:02d}"


# What cannot be used is named, and leaves everything as if it had not been sent.


def replaced(**change) -> list[ClientUpdate]:
    honest = updates_of(pseudo_gradients())
    values = {"arrays": {"w": np.ones(SIZE)}, "num_examples": 10.0, **change}
    return [*honest, ClientUpdate(STRANGER, **values)]


UNUSABLE = {
    "NaN": ({"arrays": {"w": np.full(SIZE, np.nan)}}, "expected finite values, found NaN or infinity"),
    "one infinity": (
        {"arrays": {"w": np.r_[np.inf, np.zeros(SIZE - 1)]}},
        "expected finite values, found NaN or infinity",
    ),
    "norm whose square overflows": ({"arrays": {"w": np.full(SIZE, 1e200)}}, "too large"),
    "negative count": ({"num_examples": -5.0}, "expected a positive number, found -5.0"),
    "no examples": ({"num_examples": 0.0}, "expected a positive number, found 0.0"),
    "count NaN": ({"num_examples": math.nan}, "expected a positive number, found nan"),
    "infinite count": ({"num_examples": math.inf}, "expected a positive number, found inf"),
}


@pytest.mark.parametrize("method", [fedcome(server_step=1.0), fedavg()], ids=["fedcome", "fedavg"])
@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_used_is_named_and_changes_nothing(name, method):
    change, reason = UNUSABLE[name]
    spoilt, alone = play(replaced(**change), method), play(updates_of(pseudo_gradients()), method)
    assert reason in spoilt.report.left_out[STRANGER]
    assert spoilt.report.clients == alone.report.clients
    np.testing.assert_array_equal(spoilt.arrays["w"], alone.arrays["w"])
    assert list(spoilt.state.table.keys) == list(alone.state.table.keys)
    np.testing.assert_array_equal(spoilt.state.table.values, alone.state.table.values)


def test_a_buffer_that_is_not_finite_leaves_its_client_out():
    reference = model("float64")
    updates = [ClientUpdate(f"c{i}", dict(reference), num_examples=10.0) for i in range(3)]
    updates[2] = ClientUpdate("c2", dict(reference) | {"norm.running_mean": np.full(3, np.nan)}, num_examples=10.0)
    outcome = aggregate_round(ServerState(), reference, updates, fedcome(), selector=UniformSelection())
    assert outcome.report.left_out == {"c2": "array 'norm.running_mean': expected finite values, found NaN or infinity"}
    assert outcome.report.clients == ("c0", "c1")


@pytest.mark.parametrize("copies", [2, 5])
def test_of_a_reply_that_comes_many_times_none_is_used(copies):
    once = updates_of(with_stranger(-np.ones(SIZE)))
    spoilt = play([*once, *[once[-1]] * (copies - 1)])
    assert spoilt.report.left_out == {STRANGER: f"expected one reply, found {copies} under this key"}
    np.testing.assert_array_equal(spoilt.arrays["w"], play(once[:-1]).arrays["w"])


# Zero pseudo-gradients: clients that did not train.


def test_a_client_that_did_not_move_keeps_its_share_and_constrains_nobody():
    outcome, alone = play(updates_of(with_stranger(np.zeros(SIZE)))), play(updates_of(pseudo_gradients()))
    np.testing.assert_allclose(step_of(outcome), step_of(alone) * HONEST / (HONEST + 1), rtol=1e-12)
    assert outcome.report.veto[-1] == 0
    assert outcome.report.hurt_by_direction == 0


def test_where_nobody_moved_the_model_stays_and_no_alarm_is_raised():
    outcome = play(updates_of(np.zeros((4, SIZE))))
    np.testing.assert_array_equal(outcome.arrays["w"], np.zeros(SIZE))
    assert math.isnan(outcome.report.norm_ratio)
    assert not outcome.report.vanishes
    assert outcome.report.largest_veto is None


def test_the_norm_bound_is_the_median_of_those_who_moved():
    gradients = pseudo_gradients()
    idle = np.vstack([gradients, np.zeros((HONEST + 2, SIZE))])
    bounded, moving = (play(updates_of(g), fedcome(max_client_norm=0.5, server_step=1.0)) for g in (idle, gradients))
    np.testing.assert_allclose(step_of(bounded), step_of(moving) * HONEST / (2 * HONEST + 2), rtol=1e-12)
    assert bounded.report.update_norm > 0
    assert play(updates_of(0 * idle), fedcome(max_client_norm=2.0)).report.update_norm == 0


# A huge norm.


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [(1e3, "float64"), (1e10, "float64"), (1e30, "float64"), (1e140, "float64"), (1e3, "float32"), (1e30, "float32")],
)
def test_the_norm_bound_rescues_a_round_from_any_norm(scale, dtype):
    """The result is that of a client that sent the same direction at twice the median norm."""
    direction = np.random.default_rng(1).normal(size=SIZE).astype(dtype).astype(np.float64)
    norms = np.linalg.norm(pseudo_gradients().astype(dtype).astype(float), axis=1)
    bound = 2 * np.median([*norms, np.inf])
    method = fedcome(server_step=1.0, max_client_norm=2.0)
    huge = play(updates_of(with_stranger(scale * direction), dtype), method, dtype)
    fair = play(updates_of(with_stranger(bound * direction / np.linalg.norm(direction)), dtype), method, dtype)
    assert huge.report.certified
    assert huge.report.hurt_by_direction == 0
    tolerance = 1e-11 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(step_of(huge), step_of(fair), atol=tolerance * np.linalg.norm(step_of(fair)))


@pytest.mark.parametrize("scale", [1e3, 1e10, 1e30, 1e140])
def test_without_the_norm_bound_a_huge_client_owns_the_direction(scale):
    """The programs stay exact and nobody is hurt to first order; but u is the huge client's own projection."""
    direction = np.random.default_rng(1).normal(size=SIZE)
    huge = play(updates_of(with_stranger(scale * direction)))
    assert huge.report.certified
    assert huge.report.hurt_by_direction == 0
    assert huge.report.direction_norm > scale / 100
    own = projections(with_stranger(direction))[-1] * scale / (HONEST + 1)
    np.testing.assert_allclose(step_of(huge), own, atol=(20 / scale + 1e-9) * np.linalg.norm(own))


def test_a_huge_client_changes_no_other_clients_projection():
    gradients = pseudo_gradients()
    direction = np.random.default_rng(1).normal(size=SIZE)
    ordinary, huge = (play(updates_of(with_stranger(s * direction, gradients))).report for s in (1.0, 1e30))
    np.testing.assert_allclose(huge.descent_bounds[:-1], ordinary.descent_bounds[:-1], rtol=1e-9)


def test_a_step_that_does_not_fit_the_models_type_leaves_the_model():
    updates = updates_of(with_stranger(np.full(SIZE, 1e6)))  # float64 replies to a float16 model, largest value 65,504
    reference = {"w": np.zeros(SIZE, dtype="float16")}
    outcome = aggregate_round(ServerState(), reference, updates, fedcome(), selector=UniformSelection())
    assert "do not fit its type float16" in outcome.report.unchanged
    np.testing.assert_array_equal(outcome.arrays["w"], reference["w"])


# False numbers.


def test_a_client_that_claims_1e18_examples_owns_the_mean():
    gradients = with_stranger(-np.ones(SIZE))
    updates = updates_of(gradients)
    updates[-1] = ClientUpdate(STRANGER, updates[-1].arrays, num_examples=1e18)
    np.testing.assert_allclose(step_of(play(updates, fedavg())), gradients[-1], atol=1e-12)
    outcome = play(updates)
    assert outcome.report.client_weights[-1] > 1 - 1e-15
    # FedCOME's step is then that client's own projection, which hurts nobody.
    np.testing.assert_allclose(step_of(outcome), projections(gradients)[-1], atol=1e-12)
    assert outcome.report.hurt_by_direction == 0


@pytest.mark.parametrize("make", [fedavg, lambda weights: fedcome(weights, server_step=1.0)], ids=["fedavg", "fedcome"])
def test_uniform_client_weights_ignore_the_claim(make):
    reference = model("float64")
    honest, claimed = (
        [
            ClientUpdate(
                f"c{i}",
                dict(reference)
                | {
                    name: reference[name] - 0.1 * np.random.default_rng(i).normal(size=reference[name].shape)
                    for name in PARAMETERS
                }
                | {"norm.running_mean": np.full(3, float(i))},
                num_examples=examples if i == 4 else 10.0,
            )
            for i in range(5)
        ]
        for examples in (10.0, 1e18)
    )
    outcomes = [
        aggregate_round(ServerState(), reference, updates, make("uniform"), selector=UniformSelection())
        for updates in (honest, claimed)
    ]
    for name in PARAMETERS:
        np.testing.assert_array_equal(outcomes[0].arrays[name], outcomes[1].arrays[name])
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.arrays["norm.running_mean"], 2.0)


@pytest.mark.parametrize("lie", [math.inf, math.nan, -math.inf, 1e300])
def test_a_client_that_reports_a_loss_without_end_does_not_hold_the_adaptive_step_down(lie):
    state, steps = ServerState(), []
    for server_round in range(8):
        updates = updates_of(pseudo_gradients(), metrics={"train-loss": 1.0})
        if server_round > 0:
            updates[0] = ClientUpdate("c00", updates[0].arrays, 10.0, metrics={"train-loss": lie})
        outcome = play(updates, fedcome(), state=state)
        state = outcome.state
        steps.append(outcome.report.server_step)
    assert steps == [1.0] * 8


def test_a_fixed_step_takes_no_notice_of_losses():
    updates = updates_of(pseudo_gradients(), metrics={"train-loss": math.inf})
    assert play(updates, state=ServerState(last_losses={"c00": 1.0})).report.server_step == 1.0


# The veto.


def test_minus_the_others_mean_stops_the_training_and_the_report_names_who():
    gradients = pseudo_gradients()
    frozen = play(updates_of(with_stranger(-gradients.mean(axis=0), gradients))).report
    assert frozen.norm_ratio < 1e-6
    assert frozen.vanishes
    assert frozen.largest_veto[0] == STRANGER
    assert frozen.certified
    free = play(updates_of(gradients)).report
    assert not free.vanishes
    assert free.largest_veto is not None
    assert 0 < free.largest_veto[1] < 1


@pytest.mark.parametrize("hostile", [1, 3])
def test_the_influence_limit_keeps_the_training_going(hostile):
    gradients = pseudo_gradients()
    attack = [*gradients, *[-gradients.mean(axis=0)] * hostile]
    report = play(updates_of(attack), fedcome(server_step=1.0, influence_limit=0.1)).report
    assert not report.vanishes
    assert report.norm_ratio > 0.5
    assert report.at_influence_limit >= hostile


@pytest.mark.parametrize(("hostile", "limit"), [(2, 0.3), (4, 0.1), (10, 0.1)])
def test_limits_add_up_so_that_colluders_act_as_one_with_their_number_times_the_limit(hostile, limit):
    gradients = pseudo_gradients()
    rows = np.vstack([gradients, *[-gradients.mean(axis=0)] * hostile])
    coefficients = solve_consensus(rows @ rows.T, influence_limit=limit).coefficients
    units = with_stranger(-gradients.mean(axis=0), gradients)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    limits = np.r_[np.full(HONEST, limit), hostile * limit]
    for client in range(HONEST):
        bounded = lsq_linear(units.T, -units[client], (0, limits), tol=1e-14).x
        expected = (units[client] + bounded @ units) * np.linalg.norm(gradients[client])
        np.testing.assert_allclose(coefficients[client] @ rows, expected, atol=1e-6)


def test_the_size_of_a_veto_does_not_matter():
    gradients = pseudo_gradients()
    for scale in (1e-6, 1.0, 1e6):
        report = play(updates_of(with_stranger(-scale * gradients.mean(axis=0), gradients))).report
        assert report.direction_norm < 1e-6 * np.linalg.norm(gradients.mean(axis=0))


def test_a_mean_that_vanishes_raises_no_alarm():
    """Opposed clients: nothing is lost where the mean is 0 as well, up to rounding."""
    one = np.random.default_rng(2).normal(size=SIZE)
    report = play(updates_of(np.vstack([one, -one * (1 + 1e-15)]))).report
    assert math.isnan(report.norm_ratio)
    assert not report.vanishes


def test_without_programs_there_is_no_veto():
    report = play(updates_of(pseudo_gradients()), fedavg()).report
    assert report.largest_veto is None
    assert not report.vanishes
