import itertools
import logging
import random
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedcome_flwr import ConsensusSelection, FedCOMEStrategy, UniformSelection, UpdateStrategy, fedcome
from fedcome_flwr.simulation import InlineGrid, RunObserver
from fedcome_flwr.simulation.watched_grid import WatchedGrid
from tests.unit.server._federation import bytes_of, federation, initial


class ShuffledGrid(InlineGrid):
    """Replies in a random order, as they arrive in a real federation."""

    def __init__(self, *args, order: int, **options):
        super().__init__(*args, **options)
        self.order = random.Random(order)

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        self.order.shuffle(replies)
        return replies


def start(strategy=None, app=None, nodes=6, rounds=3, grid=None, **options):
    strategy = strategy or FedCOMEStrategy()
    with grid or InlineGrid(app or federation(), nodes) as opened:
        return strategy.start(grid=opened, initial_arrays=initial(), num_rounds=rounds, **options)


def collected():
    reports = []
    return reports, lambda report: reports.append(report) or None


def test_a_fedavg_user_changes_one_name():
    options = {"fraction_train": 0.5, "min_train_nodes": 2, "min_available_nodes": 3, "weighted_by_key": "num-examples"}
    ours, theirs = start(FedCOMEStrategy(**options)), start(FedAvg(**options))
    assert sorted(ours.train_metrics_clientapp) == sorted(theirs.train_metrics_clientapp) == [1, 2, 3]
    assert set(theirs.evaluate_metrics_clientapp[3]) == set(ours.evaluate_metrics_clientapp[3])
    assert {n: a.numpy().shape for n, a in ours.arrays.items()} == {n: a.numpy().shape for n, a in initial().items()}


def test_the_mean_is_flowers_own_and_keeps_types():
    updates = {}

    def change(content, partition, server_round):
        if "arrays" in content:  # the same reply to both, whatever the seed in the config
            content["arrays"]["w"] = updates.setdefault(partition, content["arrays"]["w"])

    app = federation(change)
    ours, theirs = start(UpdateStrategy(), app, rounds=1), start(FedAvg(), app, rounds=1)
    np.testing.assert_allclose(ours.arrays["w"].numpy(), theirs.arrays["w"].numpy(), rtol=1e-6)
    assert ours.arrays["seen"].numpy().dtype == initial()["seen"].numpy().dtype  # Flower's is float64 by now


def test_nobody_is_hurt():
    reports, on_round = collected()
    start(FedCOMEStrategy(on_round=on_round), rounds=5)
    assert [report.round for report in reports] == [1, 2, 3, 4, 5]
    assert all(report.hurt_by_direction == 0 and report.certified for report in reports)
    assert any(report.hurt_by_mean > 0 for report in reports)  # else there was nothing to protect


def test_our_numbers_arrive_in_flowers_result_under_their_prefix():
    metrics = start().train_metrics_clientapp[2]
    assert metrics["fedcome-hurt-by-direction"] == 0
    assert metrics["fedcome-certified"] == 1
    assert metrics["fedcome-clients"] == 6
    assert "train-loss" in metrics
    assert not any("client-id" in name for name in metrics)


@pytest.mark.parametrize("selector", [ConsensusSelection(), UniformSelection()])
def test_one_seed_fixes_everything_whatever_the_order_of_replies(selector):
    def run(order, seed=0, noise=0):
        random.seed(noise)  # Flower's sampling draws from here; ours must not
        grid = ShuffledGrid(federation(), 10, order=order)
        reports, on_round = collected()
        strategy = FedCOMEStrategy(selector=selector, seed=seed, fraction_train=0.4, on_round=on_round)
        result = start(strategy, grid=grid, rounds=6)
        return bytes_of(result.arrays), [report.clients for report in reports]

    first = run(order=0)
    for order, noise in itertools.product((1, 2), (1, 2)):
        assert run(order=order, noise=noise) == first
    assert run(order=0, seed=1) != first


def test_every_client_gets_a_seed_of_its_own_and_the_users_config_stays_as_it_is():
    seen = []
    app = federation()

    class Spy(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            seen.extend(dict(m.content["config"]) for m in messages if m.metadata.message_type == "train")
            return super().send_and_receive(messages, timeout=timeout)

    config = ConfigRecord({"lr": 0.5})
    strategy = FedCOMEStrategy(client_config=lambda key, server_round: {"own": f"{key}/{server_round}"})
    start(strategy, grid=Spy(app, 3), rounds=2, train_config=config)
    assert dict(config) == {"lr": 0.5}
    assert len({values["client-seed"] for values in seen}) == 6
    assert sorted(values["own"] for values in seen) == sorted(f"{k}/{r}" for k in range(3) for r in (1, 2))
    assert all(values["lr"] == 0.5 for values in seen)


BAD = {
    "missing array": (
        lambda c: c.update({"arrays": ArrayRecord({"w": c["arrays"]["w"]})}),
        "missing 'seen'",
    ),
    "extra array": (lambda c: c["arrays"].update({"more": Array(np.zeros(1))}), "unexpected 'more'"),
    "shape": (lambda c: c["arrays"].update({"w": Array(np.zeros(3))}), r"'w': expected shape \(6,\), found \(3,\)"),
    "nan": (lambda c: c["arrays"].update({"w": Array(np.full(6, np.nan))}), "'w': expected finite values"),
    "text": (lambda c: c["arrays"].update({"w": Array(np.array(["a"] * 6))}), "'w': expected a floating-point type"),
    "bytes": (
        lambda c: c["arrays"].update({"w": Array("float32", (6,), "numpy.ndarray", b"no array")}),
        "'w': expected bytes in NumPy's format",
    ),
    "serialisation": (
        lambda c: c["arrays"].update({"w": Array("float32", (6,), "pickle", b"")}),
        "'w': expected the serialisation 'numpy.ndarray', found 'pickle'",
    ),
    "no arrays": (
        lambda c: c.pop("arrays"),
        "expected one ArrayRecord named 'arrays' or 'pseudo-gradient', found none",
    ),
    "other record": (lambda c: c.update({"model": c.pop("arrays")}), r"found \['model'\]"),
    "no examples": (lambda c: c["metrics"].pop("num-examples"), "expected a number 'num-examples'"),
    "zero examples": (
        lambda c: c["metrics"].update({"num-examples": 0}),
        "num-examples: expected a positive number, found 0.0",
    ),
    "examples as list": (
        lambda c: c["metrics"].update({"num-examples": [1, 2]}),
        r"expected a number 'num-examples' in a MetricRecord, found \[1, 2\]",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_named_counted_and_stops_nobody(kind, caplog):
    spoil, text = BAD[kind]

    def change(content, partition, server_round):
        if partition == 1 and server_round == 2 and "arrays" in content:
            spoil(content)

    reports, on_round = collected()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = start(FedCOMEStrategy(on_round=on_round), federation(change), nodes=4)
    assert [report.clients for report in reports] == [("0", "1", "2", "3"), ("0", "2", "3"), ("0", "1", "2", "3")]
    assert list(reports[1].left_out) == ["1"]
    with pytest.raises(ValueError, match=text):
        raise ValueError(reports[1].left_out["1"])
    assert result.train_metrics_clientapp[2]["fedcome-left-out"] == 1
    assert any("client 1 left out" in record.getMessage() for record in caplog.records)


def test_a_client_that_raises_is_named_with_its_reason():
    def change(content, partition, server_round):
        if partition == 2 and server_round == 1 and "arrays" in content:
            raise RuntimeError("disk full")

    reports, on_round = collected()
    start(FedCOMEStrategy(on_round=on_round), federation(change), nodes=4, rounds=2)
    assert "disk full" in reports[0].left_out["2"]
    assert reports[1].clients == ("0", "1", "2", "3")


def test_when_all_fail_the_model_stays_and_the_log_says_why(caplog):
    def change(content, partition, server_round):
        if server_round == 2 and "arrays" in content:
            raise RuntimeError("no power")

    reports, on_round = collected()
    with caplog.at_level(logging.ERROR, logger="flwr"):
        result = start(FedCOMEStrategy(on_round=on_round), federation(change), rounds=2)
    assert reports[1].unchanged == "no usable reply"
    assert result.train_metrics_clientapp[2]["fedcome-unchanged"] == 1
    assert bytes_of(result.arrays) == bytes_of(start(rounds=1).arrays)
    assert any("unchanged: no usable reply" in record.getMessage() for record in caplog.records)


def test_a_model_that_nobody_could_train_is_the_initial_one():
    def change(content, partition, server_round):
        if "arrays" in content:
            raise RuntimeError("no power")

    result = start(FedCOMEStrategy(), federation(change), rounds=1)
    assert bytes_of(result.arrays) == bytes_of(initial())


def test_metrics_that_not_all_clients_report_are_left_out_of_the_mean():
    def change(content, partition, server_round):
        if "metrics" in content:
            content["metrics"][f"only-{partition}"] = 1.0

    result = start(app=federation(change))
    assert "train-loss" in result.train_metrics_clientapp[1]
    assert not any(name.startswith("only-") for name in result.train_metrics_clientapp[1])
    assert set(result.evaluate_metrics_clientapp[1]) == {"loss"}


def test_lists_are_averaged_where_all_clients_report_as_many_numbers():
    def change(content, partition, server_round):
        if "arrays" in content:
            uneven = 1.0 if partition == 1 else [1.0, 2.0]
            longer = [1.0] * (1 + partition)
            content["metrics"].update({"by class": [1.0, float(partition)], "uneven": uneven, "longer": longer})

    result = start(FedCOMEStrategy(), federation(change), nodes=2, rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["by class"][0] == pytest.approx(1.0)
    assert "uneven" not in metrics
    assert "longer" not in metrics


def test_a_bad_evaluation_is_named_and_stops_nobody():
    def change(content, partition, server_round):
        if partition == 0 and "metrics" in content and "arrays" not in content:
            content["metrics"]["num-examples"] = -1

    reports, on_round = collected()
    start(FedCOMEStrategy(on_round=on_round), federation(change), nodes=3, rounds=1)
    assert set(reports[0].evaluations) == {"1", "2"}
    assert reports[0].evaluation_left_out == {"0": "num-examples: expected a positive number, found -1.0"}


def test_a_pseudo_gradient_reply_trains_as_a_model_reply_does():
    def change(content, partition, server_round):
        if "arrays" in content:
            arrays = {name: array.numpy() for name, array in content.pop("arrays").items()}
            arrays["w"] = last["w"] - arrays["w"]
            content["pseudo-gradient"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})

    last = {name: array.numpy() for name, array in initial().items()}
    ours, theirs = start(app=federation(change), rounds=1), start(rounds=1)
    np.testing.assert_allclose(ours.arrays["w"].numpy(), theirs.arrays["w"].numpy(), rtol=1e-6, atol=1e-7)


def test_on_round_sees_evaluations_and_the_servers_metrics_and_can_end_the_training():
    reports, calls = [], []

    def on_round(report):
        reports.append(report)
        return report.round == 2

    def evaluate_fn(server_round, arrays):
        calls.append(server_round)
        return MetricRecord({"accuracy": 0.1 * server_round})

    result = start(FedCOMEStrategy(on_round=on_round), rounds=5, evaluate_fn=evaluate_fn)
    assert [report.round for report in reports] == [1, 2]
    assert reports[1].server_metrics == {"accuracy": 0.2}
    assert set(reports[1].evaluations) == {str(i) for i in range(6)}
    assert calls == [0, 1, 2]
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert bytes_of(result.arrays) == bytes_of(start(rounds=2).arrays)


def test_rounds_are_counted_over_all_calls_of_start():
    reports, calls = [], []
    strategy = FedCOMEStrategy(fraction_train=0.5, on_round=lambda report: reports.append(report.round))
    with InlineGrid(federation(), 6) as grid:
        arrays = initial()
        for _ in range(2):
            arrays = strategy.start(
                grid=grid,
                initial_arrays=arrays,
                num_rounds=2,
                evaluate_fn=lambda server_round, arrays: calls.append(server_round),
            ).arrays
    assert reports == [1, 2, 3, 4]
    assert calls == [0, 1, 2, 2, 3, 4]
    whole = start(FedCOMEStrategy(fraction_train=0.5), rounds=4)
    assert bytes_of(arrays) == bytes_of(whole.arrays)


def test_replies_lose_their_arrays_and_keep_their_metrics():
    strategy = FedCOMEStrategy()
    with InlineGrid(federation(), 3) as grid:
        replies = grid.send_and_receive(strategy.configure_train(1, initial(), ConfigRecord(), grid))
        strategy.aggregate_train(1, replies)
    assert [(len(r.content.array_records), len(r.content.metric_records)) for r in replies] == [(0, 1)] * 3


def test_too_few_nodes_end_with_a_clear_text():
    with pytest.raises(TimeoutError, match=r"expected at least 5 nodes online, found 3 after 0.01 s"):
        start(FedCOMEStrategy(min_train_nodes=5, node_timeout=0.01), nodes=3)


def test_one_client_is_enough():
    result = start(FedCOMEStrategy(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1), nodes=1)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]


def test_a_fraction_takes_the_share_that_it_says():
    reports, on_round = collected()
    start(FedCOMEStrategy(fraction_train=0.29, on_round=on_round), nodes=100, rounds=1)
    assert len(reports[0].clients) == 29  # int(0.29 · 100) is 28


def test_adaptive_step_and_table_live_in_the_state():
    strategy = FedCOMEStrategy()
    start(strategy)
    assert strategy.state.round == 3
    assert len(strategy.state.table.keys) == 6
    assert strategy.state.server_step == 1.0
    assert set(strategy.state.last_losses) == {str(i) for i in range(6)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fraction_train": 0.0}, r"fraction_train: expected a number in \(0, 1\], found 0.0"),
        ({"fraction_train": 1.5}, "fraction_train: expected"),
        ({"fraction_evaluate": -0.1}, r"fraction_evaluate: expected a number in \[0, 1\]"),
        ({"node_timeout": -1.0}, "node_timeout: expected a positive number or None"),
    ],
)
def test_bad_settings_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        FedCOMEStrategy(**options)


def test_other_replies_are_not_mixed_with_the_methods(caplog):
    """A method without a client loss keeps its step at 1."""

    def change(content, partition, server_round):
        if "metrics" in content:
            content["metrics"].pop("train-loss", None)

    reports, on_round = collected()
    start(FedCOMEStrategy(method=fedcome(), on_round=on_round), federation(change), rounds=2)
    assert [report.server_step for report in reports] == [1.0, 1.0]
    assert reports[0].train_losses == (None,) * 6


def test_strategies_need_no_identity_from_clients_and_say_so_once(caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = start(app=federation(query=False), rounds=2)
    warnings = [r.getMessage() for r in caplog.records if "give no client-id" in r.getMessage()]
    assert len(warnings) == 1
    assert sorted(result.train_metrics_clientapp) == [1, 2]


def test_two_online_nodes_under_one_key_are_both_left_out():
    reports, on_round = collected()
    start(FedCOMEStrategy(on_round=on_round), federation(label=lambda i: "twin" if i < 2 else str(i)), nodes=5)
    assert reports[0].clients == ("2", "3", "4")
    assert "expected one node online under this key, found 2" in reports[0].left_out["twin"]


def test_evaluation_can_be_switched_off():
    reports, on_round = collected()
    result = start(FedCOMEStrategy(fraction_evaluate=0.0, on_round=on_round))
    assert result.evaluate_metrics_clientapp == {}
    assert [report.round for report in reports] == [1, 2, 3]


def test_records_may_have_other_names():
    def change(content, partition, server_round):
        if "arrays" in content:
            content["weights"] = content.pop("arrays")

    app = federation(change)

    class Renaming(InlineGrid):
        """Hands the clients the names that they know."""

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            for message in messages:
                if "weights" in message.content:
                    assert set(message.content) == {"weights", "settings"}
                    message.content = RecordDict(
                        {"arrays": message.content["weights"], "config": message.content["settings"]}
                    )
            return super().send_and_receive(messages, timeout=timeout)

    result = start(
        FedCOMEStrategy(arrayrecord_key="weights", configrecord_key="settings"), grid=Renaming(app, 4), rounds=1
    )
    assert result.train_metrics_clientapp[1]["fedcome-clients"] == 4


def test_nodes_that_come_up_while_others_are_asked_take_part_in_round_1():
    """As in Flower's simulations, whose ServerApp may start before the nodes do."""

    class Starting(WatchedGrid):
        online = 2

        def get_node_ids(self):
            return super().get_node_ids()[: self.online]

        def get_nodes(self):
            return super().get_nodes()[: self.online]

        def pull_messages(self, message_ids):
            self.online = 10
            return super().pull_messages(message_ids)

    sizes = []
    with InlineGrid(federation(), 10) as inner:
        grid = Starting(inner, RunObserver(), threading.Event())
        strategy = UpdateStrategy(fraction_train=0.5, on_round=lambda report: sizes.append(len(report.clients)))
        strategy.start(grid=grid, initial_arrays=initial(), num_rounds=1)
    assert sizes == [5]
