"""Old NumPyClients, unchanged, under the strategies of the Message API, alone and beside newer clients."""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcome_flwr import FedCOMEStrategy, UpdateStrategy
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import SIZE, bytes_of, federation, initial, target


class OldClient(NumPyClient):
    """What federation()'s clients do, as it was written before the Message API."""

    def __init__(self, partition: int, **replies):
        self.partition, self.replies = partition, replies

    def fit(self, parameters, config):
        self.replies.get("see", lambda *_: None)(parameters, config)
        w, seen = parameters
        seed = config.get("client-seed")
        noise = 0.0 if seed is None else 0.1 * np.random.default_rng(seed).normal(size=SIZE)
        loss = 0.5 * float(np.sum((w - target(self.partition)) ** 2))
        new = (w - 0.1 * (w - target(self.partition) + noise)).astype("float32")
        metrics = {"train-loss": loss, **self.replies.get("metrics", {})}
        arrays = self.replies.get("arrays", lambda a: a)([new, np.asarray(seen + 1)])
        return arrays, self.replies.get("num_examples", 10 + self.partition), metrics

    def evaluate(self, parameters, config):
        w, _ = parameters
        return float(np.sum((w - target(self.partition)) ** 2)), 5, self.replies.get("evaluation", {})


def old_app(**replies) -> ClientApp:
    """Every client an OldClient; ``replies`` are given to partition 1 only."""

    def client_fn(context: Context):
        partition = int(context.node_config["partition-id"])
        return OldClient(partition, **(replies if partition == 1 else {})).to_client()

    return ClientApp(client_fn=client_fn)


def mixed_app(old: ClientApp, new: ClientApp):
    """Even partitions are new, odd ones old."""

    def answer(message: Message, context: Context) -> Message:
        return (old if int(context.node_config["partition-id"]) % 2 else new)(message, context)

    return answer


def start(app, strategy=None, nodes=4, rounds=3, **options):
    with InlineGrid(app, nodes) as grid:
        return (strategy or FedCOMEStrategy()).start(grid=grid, initial_arrays=initial(), num_rounds=rounds, **options)


def collected():
    reports = []
    return reports, lambda report: reports.append(report) or None


def test_old_clients_train_as_new_ones_do():
    """To the last byte: the same keys (by order of registration here), the same seeds, the same arrays."""
    old, new = start(old_app()), start(federation(query=False))
    assert bytes_of(old.arrays) == bytes_of(new.arrays)
    assert list(old.arrays) == list(initial())  # names restored by position
    assert old.train_metrics_clientapp[3]["train-loss"] == new.train_metrics_clientapp[3]["train-loss"]
    assert old.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(new.evaluate_metrics_clientapp[3]["loss"])


def test_a_mixed_federation_trains_as_one_of_one_kind():
    label = "node-{:05d}".format  # the names that old clients get by their place
    mixed = start(mixed_app(old_app(), federation(query=False)))
    assert bytes_of(mixed.arrays) == bytes_of(start(federation(label=label)).arrays)
    assert mixed.train_metrics_clientapp[1]["fedcome-clients"] == 4


def test_each_client_gets_only_the_records_that_it_understands():
    seen = []

    class Spy(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            seen.extend((m.metadata.message_type, frozenset(m.content)) for m in messages)
            return super().send_and_receive(messages, timeout=timeout)

    with Spy(mixed_app(old_app(), federation()), 2) as grid:
        FedCOMEStrategy().start(grid=grid, initial_arrays=initial(), num_rounds=1)
    assert {names for kind, names in seen if kind == "train"} == {
        frozenset({"arrays", "config"}),  # Flower's privacy mods take one ArrayRecord only
        frozenset({"fitins.parameters", "fitins.config"}),
    }
    assert {names for kind, names in seen if kind == "evaluate"} == {
        frozenset({"arrays", "config"}),
        frozenset({"evaluateins.parameters", "evaluateins.config"}),
    }


def test_a_client_that_has_not_shown_its_kind_gets_both():
    """A query may fail for any reason; the first message then serves both kinds."""

    def silent(app):
        def answer(message, context):
            if message.metadata.message_type == "query":
                raise RuntimeError("try later")
            return app(message, context)

        return answer

    for app in (old_app(), federation()):
        result = start(silent(app), rounds=2)
        assert [result.train_metrics_clientapp[r]["fedcome-clients"] for r in (1, 2)] == [4, 4]


def test_lists_in_the_config_reach_new_clients_and_do_not_stop_old_ones():
    seen = []
    app = old_app(see=lambda parameters, config: seen.append(config))
    start(app, rounds=1, train_config=ConfigRecord({"layers": [1, 2], "lr": 0.1}))
    assert seen[0]["lr"] == 0.1
    assert "layers" not in seen[0]
    assert seen[0]["server-round"] == 1


def test_strings_and_bytes_of_the_metrics_reach_the_users_aggregation():
    texts = []

    def aggregate(contents, weight_key):
        texts.extend(dict(content.config_records.get("texts", {})) for content in contents)
        return contents[1].metric_records["metrics"]

    app = old_app(metrics={"host": "phone", "token": b"\x00", "flag": True, "accuracy": 0.5})
    result = start(app, FedCOMEStrategy(train_metrics_aggr_fn=aggregate), rounds=1)
    assert texts[1] == {"host": "phone", "token": b"\x00"}
    assert result.train_metrics_clientapp[1]["train-loss"] > 0


def test_the_numbers_of_the_metrics_reach_the_report():
    reports, on_round = collected()
    start(old_app(metrics={"accuracy": 0.5, "flag": True}), FedCOMEStrategy(on_round=on_round), rounds=1)
    assert reports[0].client_metrics["node-00001"]["accuracy"] == 0.5
    assert reports[0].client_metrics["node-00001"]["flag"] == 1


def test_a_numpy_client_may_send_its_pseudo_gradient():
    def subtract(arrays):
        return [initial()["w"].numpy() - arrays[0], arrays[1]]

    sent = start(old_app(arrays=subtract, metrics={"reply-kind": "pseudo-gradient"}), rounds=1)
    np.testing.assert_allclose(sent.arrays["w"].numpy(), start(old_app(), rounds=1).arrays["w"].numpy(), rtol=1e-6)


BAD = {
    "too few arrays": ({"arrays": lambda a: a[:1]}, "expected the 2 arrays of the model in their order, found 1"),
    "too many arrays": ({"arrays": lambda a: [*a, a[0]]}, "expected the 2 arrays of the model in their order, found 3"),
    "no arrays": ({"arrays": lambda a: []}, "expected the 2 arrays of the model in their order, found 0"),
    "shape": ({"arrays": lambda a: [a[0][:2], a[1]]}, r"'w': expected shape \(6,\), found \(2,\)"),
    "dtype": ({"arrays": lambda a: [a[0].astype(int), a[1]]}, "'w': expected a floating-point type such as float32"),
    "no examples": ({"num_examples": 0}, "num-examples: expected a positive number, found 0.0"),
    "negative examples": ({"num_examples": -2}, "num-examples: expected a positive number, found -2.0"),
    "kind": ({"metrics": {"reply-kind": "delta"}}, "reply-kind: expected 'model' or 'pseudo-gradient', found 'delta'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_named_and_stops_nobody(kind):
    replies, text = BAD[kind]
    reports, on_round = collected()
    start(old_app(**replies), FedCOMEStrategy(on_round=on_round), rounds=2)
    for report in reports:
        assert report.clients == ("node-00000", "node-00002", "node-00003")
        with pytest.raises(ValueError, match=text):
            raise ValueError(report.left_out["node-00001"])


def test_a_status_other_than_ok_is_named():
    def failing(message, context):
        reply = old_app()(message, context)
        if "fitres.status" in reply.content and context.node_config["partition-id"] == 1:
            reply.content["fitres.status"] = ConfigRecord({"code": 3, "message": "no data yet"})
        return reply

    reports, on_round = collected()
    start(failing, FedCOMEStrategy(on_round=on_round), rounds=1)
    assert reports[0].left_out == {"node-00001": "expected status 0 (OK), found 3: 'no data yet'"}


def test_a_plain_mean_over_old_clients_is_flowers():
    class Fixed(OldClient):
        def fit(self, parameters, config):
            return super().fit(parameters, {})

    def client_fn(context):
        return Fixed(int(context.node_config["partition-id"])).to_client()

    ours = start(ClientApp(client_fn=client_fn), UpdateStrategy(), rounds=1)
    theirs = start(federation(), FedAvg(), rounds=1)  # sends no client-seed, so no noise there either
    np.testing.assert_allclose(ours.arrays["w"].numpy(), theirs.arrays["w"].numpy(), rtol=1e-6)


def test_one_warning_for_all_that_are_known_by_their_place(caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        start(old_app(), rounds=3)
    assert sum("4 clients give no client-id" in record.getMessage() for record in caplog.records) == 1


def test_a_config_that_flower_cannot_carry_names_the_client():
    strategy = FedCOMEStrategy(client_config=lambda key, server_round: {"model": {"deep": 1}})
    with pytest.raises(ValueError, match="client_config for client 'node-00000': Flower cannot carry"):
        start(old_app(), strategy, rounds=1)
