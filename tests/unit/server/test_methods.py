"""What the strategies send and count for the compared methods."""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedcome_flwr import (
    ConsensusSelection,
    FedCOMEStrategy,
    UniformSelection,
    UpdateStrategy,
    fedcome,
    feddc,
    feddyn,
    fedfv,
    fedprox,
    scaffold,
)
from fedcome_flwr.server.legacy import FedCOMEStrategy as LegacyStrategy
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import SIZE, initial
from tests.unit.server._methods import each_method, remembering


def start(strategy, app, nodes=4, rounds=3):
    with InlineGrid(app, nodes, debug=True) as grid:
        return strategy.start(grid=grid, initial_arrays=initial(), num_rounds=rounds)


@each_method
@pytest.mark.parametrize("selector", [UniformSelection(), ConsensusSelection()], ids=["uniform", "consensus"])
def test_any_method_goes_with_any_selection(method, selector):
    app, _ = remembering()
    reports = []
    strategy = UpdateStrategy(
        method=method, selector=selector, fraction_train=0.5, on_round=lambda report: reports.append(report) or None
    )
    result = start(strategy, app, nodes=6)
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert result.arrays["w"].numpy().any()
    assert [len(report.clients) for report in reports] == [3, 3, 3]
    assert not any(report.left_out for report in reports)
    assert all(len(report.annealed) == (2 if isinstance(selector, ConsensusSelection) else 0) for report in reports)


SENT = {
    "fedavg": {},
    "fedcome": {},
    "fedfv": {"train-loss": True},
    "fedprox": {"rule-pull": 0.1, "proximal-mu": 0.1},
    "scaffold": {"rule-pull": 0.0, "rule-drift": False, "rule-control": True},
    "feddyn": {"rule-pull": 0.1, "rule-drift": True, "rule-control": False},
    "feddc": {"rule-pull": 0.1, "rule-drift": True, "rule-control": True},
}


@each_method
def test_what_clients_are_told(method):
    app, asked = remembering()
    start(UpdateStrategy(method=method), app, rounds=2)
    memory = {"memory-epoch": 0, "accepted-round": 1} if method.rule.has_memory else {}
    config, content = asked[-1]
    assert {k: v for k, v in config.items() if k not in ("server-round", "client-seed")} == SENT[method.name] | memory
    assert ("control" in content) == method.rule.control
    assert asked[0][0].get("accepted-round", 0) == 0


def test_the_control_variate_that_is_sent_is_the_mean_over_all_clients():
    app, asked = remembering()
    strategy = UpdateStrategy(method=scaffold(), num_clients=10)
    start(strategy, app, rounds=1)
    assert not asked[0][1]["control"]["w"].numpy().any()
    total = strategy.state.memory.control["w"]
    start(strategy, app, rounds=1)
    sent = asked[-1][1]["control"]
    assert list(sent) == ["w"]  # no buffers
    np.testing.assert_allclose(sent["w"].numpy(), total / 10, rtol=1e-6)
    assert sent["w"].numpy().dtype == np.float32


def test_evaluation_messages_carry_nothing_of_the_method():
    seen = []
    app, _ = remembering()

    def watched(message, context):
        if message.metadata.message_type == "evaluate":
            seen.append(message.content)
        return app(message, context)

    start(UpdateStrategy(method=feddc(0.1)), watched, rounds=1)
    assert seen
    assert all("control" not in content and "rule-pull" not in content["config"] for content in seen)


def test_all_clients_are_those_online_or_asked_before():
    app, _ = remembering()
    strategy = UpdateStrategy(method=feddyn(0.1))
    start(strategy, app, nodes=4, rounds=1)
    before = strategy.state.memory.drift["w"]
    result = start(strategy, app, nodes=2, rounds=1)  # two have gone; their drift still counts
    after = strategy.state.memory.drift["w"]
    assert result.train_metrics_clientapp[1]["fedcome-drift-norm"] == pytest.approx(np.linalg.norm(after) / 4, rel=1e-6)
    assert not np.allclose(before, after)


def test_fewer_clients_than_there_are():
    app, _ = remembering()
    with pytest.raises(ValueError, match="num_clients: expected at least the 4 clients seen so far, found 3"):
        start(UpdateStrategy(method=scaffold(), num_clients=3), app)
    with pytest.raises(ValueError, match="num_clients: expected at least 1, found 0"):
        UpdateStrategy(num_clients=0)


def test_replies_of_other_nodes_confirm_nothing():
    """A memory-round of another kind than a number is as good as none."""
    app, _ = remembering()

    def odd(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            reply.content["client"] = ConfigRecord({**reply.content["client"], "memory-round": "0"})
        return reply

    reports = []
    start(UpdateStrategy(method=feddyn(0.1), on_round=lambda r: reports.append(r) or None), odd, rounds=1)
    assert all("needs clients that keep a memory" in text for text in reports[0].left_out.values())


def test_metrics_of_memory_reach_flowers_result_for_methods_that_have_it():
    app, _ = remembering()
    dc = start(UpdateStrategy(method=feddc(0.1)), app, rounds=2).train_metrics_clientapp[2]
    assert dc["fedcome-memory-epoch"] == dc["fedcome-memory-strayed"] == 0
    assert dc["fedcome-control-norm"] > 0
    assert dc["fedcome-drift-norm"] > 0
    come = start(FedCOMEStrategy(), app, rounds=1).train_metrics_clientapp[1]
    assert not {"fedcome-memory-epoch", "fedcome-control-norm", "fedcome-drift-norm"} & set(come)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (fedcome(), None),
        (scaffold(), "scaffold keeps 0.0 MiB at the server and up to 0.0 MiB on each client, and sends 0.0 MiB more"),
        (feddyn(0.1), "feddyn keeps 0.0 MiB at the server"),
        (fedfv(0.1, 3), "fedfv keeps at the server the last pseudo-gradient (0.0 MiB) of every client of the last 3"),
    ],
)
def test_what_a_method_keeps_is_said_at_the_start(method, text, caplog):
    app, _ = remembering()
    with caplog.at_level(logging.INFO, "flwr"):
        start(UpdateStrategy(method=method), app, rounds=1)
    notes = [record.getMessage() for record in caplog.records if "keeps" in record.getMessage()]
    assert len(notes) == (text is not None)
    assert text is None or text in notes[0]


@each_method
def test_the_legacy_strategy_takes_what_works_there(method):
    if method.rule.has_memory:
        with pytest.raises(ValueError, match=f"method: {method.name} keeps a memory on clients"):
            LegacyStrategy(method=method)
    else:
        LegacyStrategy(method=method)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: feddyn(0.0), "alpha: expected a positive number, found 0.0"),
        (lambda: feddyn(-1.0), "alpha: expected a positive number"),
        (lambda: feddc(float("nan")), "alpha: expected a positive number"),
        (lambda: fedprox(-0.1), "pull: expected at least 0, found -0.1"),
    ],
)
def test_bad_hyperparameters_are_refused(build, text):
    with pytest.raises(ValueError, match=text):
        build()


def size_of(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.array_records.values())


@each_method
def test_bytes_of_arrays_on_the_wire(method):
    """Up, one model, whatever the method; down, the model, and its parameters again where there is a control."""
    app, asked = remembering()
    up = []

    def weighed(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            up.append(size_of(reply.content))
        return reply

    start(UpdateStrategy(method=method), weighed, rounds=2)
    down = [size_of(content) for _, content in asked if "fitins.parameters" not in content]
    model = initial().count_bytes()
    assert set(up) == {model}
    extra = {False: 0, True: model - len(initial()["seen"].data) - len("seen")}[method.rule.control]
    assert down
    assert set(down) == {model + extra}
    assert extra > SIZE * 4 or not method.rule.control
