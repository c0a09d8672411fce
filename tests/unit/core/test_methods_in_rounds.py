"""Methods with client memory, with needs, or with a look back, in `aggregate_round`."""

from dataclasses import replace

import numpy as np
import pytest

from fedcome_flwr.core import (
    ClientUpdate,
    ServerState,
    UniformSelection,
    aggregate_round,
    feddc,
    feddyn,
    fedfv,
    fedprox,
    scaffold,
)
from fedcome_flwr.core.server_memory import MemorySums

REFERENCE = {"w": np.zeros(3), "count": np.array(0)}
METRICS = {"train-loss": 1.0, "step-size-sum": 0.5}


def update(key: str, values, **options) -> ClientUpdate:
    arrays = {"w": np.array(values, dtype=float), "count": np.array(1)}
    return ClientUpdate(key, arrays, 10, **({"metrics": METRICS, "memory_round": 0} | options))


def play(method, updates, state=None, reference=None, num_clients=4):
    return aggregate_round(
        state or ServerState(),
        reference or REFERENCE,
        updates,
        method,
        selector=UniformSelection(),
        num_clients=num_clients if method.rule.has_memory else None,
    )


UPDATES = [update("a", [1, 0, 0]), update("b", [0, 2, 0])]


def test_the_mean_drift_of_all_clients_is_added_to_the_model():
    outcome = play(feddyn(0.1), UPDATES)
    np.testing.assert_allclose(outcome.arrays["w"], np.array([1, 2, 0]) / 2 + np.array([1, 2, 0]) / 4)
    np.testing.assert_allclose(outcome.state.memory.drift["w"], [1, 2, 0])
    assert outcome.report.drift_norm == pytest.approx(np.sqrt(5) / 4)
    assert outcome.report.update_norm == pytest.approx(np.sqrt(5) * 0.75)
    assert outcome.report.control_norm is None


def test_the_sum_of_controls_moves_by_the_replies():
    outcome = play(scaffold(), UPDATES)
    np.testing.assert_allclose(outcome.state.memory.control["w"], [-2, -4, 0])  # g / s
    np.testing.assert_allclose(outcome.arrays["w"], [0.5, 1, 0])
    assert outcome.report.control_norm == 0  # as sent
    assert dict(outcome.state.memory.accepted) == {"a": 1, "b": 1}


def test_the_control_variate_is_sent_in_the_models_type_over_all_clients():
    sums = MemorySums(control={"w": np.array([1.0, 2.0, 3.0])})
    sent = sums.control_variate({"w": np.zeros(3, np.float16)}, ["w"], 4)
    assert sent["w"].dtype == np.float16
    np.testing.assert_array_equal(sent["w"], [0.25, 0.5, 0.75])


@pytest.mark.parametrize("method", [scaffold(), feddyn(0.1), feddc(0.1)], ids=lambda method: method.name)
def test_a_client_that_knows_of_no_memory_is_refused_and_told_what_to_use(method):
    outcome = play(method, [*UPDATES, update("old", [1, 1, 1], memory_round=None)])
    assert outcome.report.clients == ("a", "b")
    text = outcome.report.left_out["old"]
    assert text.startswith(f"{method.name} needs clients that keep a memory")
    assert "client_app" in text
    assert "memory_mod" in text
    assert outcome.report.memory_epoch == 0  # nobody else loses anything


def test_a_memory_that_strayed_sets_all_back_to_zero():
    first = play(feddc(0.1), UPDATES)
    replies = [update("a", [1, 0, 0], memory_round=1), update("b", [0, 2, 0], memory_round=7)]
    second = play(feddc(0.1), replies, first.state)
    assert second.report.memory_strayed == ("b",)
    assert second.report.memory_epoch == second.state.memory.epoch == 1
    assert second.report.left_out["b"] == "expected its memory of round 1, found that of round 7 (0: none)"
    assert (second.state.memory.drift, second.state.memory.control, second.state.memory.accepted) == ({}, {}, {})
    np.testing.assert_allclose(second.arrays["w"], [1, 0, 0])  # the rest goes on, without drift


def test_a_client_sets_all_back_once_and_is_left_out_when_it_strays_again():
    first = play(feddc(0.1), UPDATES)
    outcome = play(
        feddc(0.1), [update("a", [1, 0, 0], memory_round=1), update("b", [0, 2, 0], memory_round=0)], first.state
    )
    assert outcome.state.memory.restarted_by == {"b"}
    outcome = play(feddc(0.1), UPDATES, outcome.state)  # honest for a round, so that something is counted again
    drift = outcome.state.memory.drift
    liar = [update("a", [1, 0, 0], memory_round=3), update("b", [0, 2, 0], memory_round=0)]
    outcome = play(feddc(0.1), liar, outcome.state)
    assert outcome.report.memory_strayed == ()
    assert outcome.report.clients == ("a",)
    assert outcome.report.left_out["b"].endswith("set back to 0 for it before: give it a state_dir that lasts")
    assert outcome.state.memory.epoch == 1
    np.testing.assert_allclose(outcome.state.memory.drift["w"], drift["w"] + [1, 0, 0])


def test_where_most_clients_stray_all_start_again_and_nobody_is_noted():
    state = play(feddc(0.1), UPDATES).state
    for epoch in (1, 2):  # as often as a server is restored
        outcome = play(feddc(0.1), [update(key, [1, 0, 0], memory_round=99) for key in "ab"], state)
        assert outcome.report.memory_strayed == ("a", "b")
        assert (outcome.state.memory.epoch, outcome.state.memory.restarted_by) == (epoch, frozenset())
        state = play(feddc(0.1), UPDATES, outcome.state).state
        assert play(feddc(0.1), [update("a", [1, 0, 0], memory_round=state.round)], state).report.clients == ("a",)


def test_a_client_of_which_nothing_is_counted_cannot_take_everybodys_memory():
    first = play(scaffold(), UPDATES)
    replies = [update("a", [1, 0, 0], memory_round=1), update("new", [0, 2, 0], memory_round=7)]
    second = play(scaffold(), replies, first.state)
    assert second.report.clients == ("a",)
    assert second.report.memory_strayed == ()
    assert second.state.memory.epoch == 0


def test_an_overflow_moves_no_memory():
    reference = {"w": np.zeros(3, np.float16), "count": np.array(0)}
    sums = MemorySums(drift={"w": np.array([1e6, 0.0, 0.0])}, accepted={"a": 0})
    outcome = play(feddyn(0.1), [update("a", [1, 0, 0])], ServerState(memory=sums), reference)
    assert "do not fit" in outcome.report.unchanged
    assert outcome.state.memory is sums


@pytest.mark.parametrize("num_clients", [None, 0, 1])
def test_the_number_of_all_clients_is_needed(num_clients):
    with pytest.raises(ValueError, match="num_clients: scaffold needs the number of all clients"):
        play(scaffold(), UPDATES, num_clients=num_clients)


@pytest.mark.parametrize("found", [{}, {"train-loss": float("nan")}, {"train-loss": float("inf")}])
def test_a_missing_loss_names_the_method_and_the_client(found):
    outcome = play(fedfv(), [*UPDATES, update("c", [1, 1, 1], metrics=found)])
    assert outcome.report.clients == ("a", "b")
    assert outcome.report.left_out["c"].startswith("fedfv needs the metric 'train-loss', the loss of the received")


@pytest.mark.parametrize("found", [{}, {"step-size-sum": 0.0}, {"step-size-sum": float("nan")}])
@pytest.mark.parametrize("method", [scaffold(), feddc()], ids=lambda method: method.name)
def test_a_missing_sum_of_step_sizes_names_the_method_and_the_client(found, method):
    outcome = play(method, [*UPDATES, update("c", [1, 1, 1], metrics=found)])
    assert outcome.report.clients == ("a", "b")
    assert outcome.report.left_out["c"].startswith(f"{method.name} needs the metric 'step-size-sum'")


def test_without_any_usable_reply_model_and_memory_stay():
    first = play(feddc(0.1), UPDATES)
    second = play(feddc(0.1), [update("a", [1, 0, 0], metrics={}, memory_round=1)], first.state, first.arrays)
    assert second.report.unchanged == "no usable reply"
    assert second.arrays is first.arrays
    assert second.state.memory is first.state.memory


@pytest.mark.parametrize("method", [scaffold(), feddyn(0.1), feddc(0.1), fedfv(0.1, 2), fedprox(0.1)])
def test_the_order_of_replies_does_not_matter(method):
    state, arrays = ServerState(), REFERENCE
    other_state, other_arrays = state, arrays
    for number in range(3):
        drawn = np.random.default_rng(number)
        replies = [update(key, drawn.normal(size=3), memory_round=number) for key in "abc"]
        one, other = play(method, replies, state, arrays), play(method, replies[::-1], other_state, other_arrays)
        state, arrays, other_state, other_arrays = one.state, one.arrays, other.state, other.arrays
        assert arrays["w"].tobytes() == other_arrays["w"].tobytes()
        assert replace(one.report, seconds={}) == replace(other.report, seconds={})


def test_the_past_is_kept_as_long_as_it_is_looked_at():
    method, state = fedfv(0.0, 2), ServerState()
    kept = []
    for keys in (["a", "b"], ["b"], ["c"], ["c"]):
        outcome = play(method, [update(key, np.eye(3)[ord(key) - 97]) for key in keys], state)
        state = outcome.state
        kept.append({key: item.round for key, item in state.past.items()})
    assert kept == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"b": 2, "c": 3}, {"c": 4}]
    np.testing.assert_array_equal(state.past["c"].arrays["w"], -np.eye(3)[2])  # w0 - w
    assert list(state.past["c"].arrays) == ["w"]  # buffers have no pseudo-gradient


def test_an_absent_client_bends_the_direction_and_is_no_client_of_the_round():
    first = play(fedfv(0.0, 1), [update("a", [1, 0, 0])])
    second = play(fedfv(0.0, 1), [update("b", [-1, 1, 0])], first.state)
    np.testing.assert_allclose(second.arrays["w"], [0, np.sqrt(2), 0], atol=1e-12)
    assert second.report.clients == ("b",)
    assert len(second.report.client_weights) == 1
    assert "a" in first.state.past
