"""What we rely on, or work around, in Flower. Tested with flwr 1.42.

A failure here after an upgrade names the place in ``fedcome_flwr.server`` to look at; where Flower has become better,
our own code for it can go.
"""

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcome_flwr.server.identity import _REFUSALS
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import federation, initial
from tests.unit.server.test_numpy_clients import old_app


def configured(config: ConfigRecord | None = None, nodes: int = 20, fraction: float = 0.5) -> list[Message]:
    with InlineGrid(federation(), nodes) as grid:
        strategy = FedAvg(fraction_train=fraction)
        return list(strategy.configure_train(1, initial(), config if config is not None else ConfigRecord(), grid))


def aggregated(replies: list[tuple[np.ndarray, dict]]) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """What Flower's FedAvg makes of replies of these arrays and metrics."""
    with InlineGrid(federation(), len(replies)) as grid:
        asked = FedAvg().configure_train(1, initial(), ConfigRecord(), grid)
        messages = [
            Message(
                RecordDict({"arrays": ArrayRecord({"w": Array(array)}), "metrics": MetricRecord(metrics)}),
                reply_to=message,
            )
            for message, (array, metrics) in zip(asked, replies, strict=True)
        ]
        return FedAvg().aggregate_train(1, messages)


def test_all_messages_of_flower_share_one_content_object():
    """Why UpdateStrategy._message writes one record for each client."""
    messages = configured()
    assert all(message.content is messages[0].content for message in messages)


def test_flower_draws_cohorts_from_the_global_generator():
    """Why cohorts come from the selector and (seed, round)."""
    cohorts = []
    for seed in (0, 0, 1):
        random.seed(seed)
        cohorts.append([message.metadata.dst_node_id for message in configured()])
    assert cohorts[0] == cohorts[1] != cohorts[2]


def test_flower_changes_the_callers_config():
    """Why UpdateStrategy._message copies it."""
    config = ConfigRecord({"lr": 0.1})
    configured(config)
    assert config["server-round"] == 1


def test_flower_returns_integers_as_floats():
    """Why buffers are rounded back to their own type."""
    arrays, _ = aggregated([(np.array([1]), {"num-examples": 1}), (np.array([4]), {"num-examples": 2})])
    assert arrays["w"].numpy().dtype == np.float64
    assert arrays["w"].numpy() == 3.0


def test_weights_without_a_sum_stop_flower():
    """Why a client without examples is left out before anything is averaged."""
    with pytest.raises(ZeroDivisionError):
        aggregated([(np.zeros(1), {"num-examples": 0}), (np.zeros(1), {"num-examples": 0})])


def test_flower_averages_every_metric():
    """Why identities travel in a ConfigRecord."""
    _, metrics = aggregated([(np.zeros(1), {"num-examples": 1, "id": 3}), (np.zeros(1), {"num-examples": 1, "id": 8})])
    assert metrics["id"] == 5.5


def test_one_reply_with_other_metrics_stops_flower():
    """Why records.comparable cuts metrics down to the common ones."""
    with pytest.raises(Exception, match="same keys"):
        aggregated([(np.zeros(1), {"num-examples": 1, "a": 3}), (np.zeros(1), {"num-examples": 1, "b": 8})])


def test_every_call_of_start_counts_from_one():
    """Why UpdateStrategy counts rounds in its state."""
    rounds = []

    class Counting(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            rounds.append(server_round)
            return super().configure_train(server_round, arrays, config, grid)

    strategy = Counting()
    with InlineGrid(federation(), 2) as grid:
        for _ in range(2):
            strategy.start(grid=grid, initial_arrays=initial(), num_rounds=2)
    assert rounds == [1, 2, 1, 2]


def test_start_keeps_the_replies_while_the_next_round_trains():
    """Why aggregate_train takes the arrays out of the replies that it is given."""
    kept = []

    class Keeping(FedAvg):
        def aggregate_train(self, server_round, replies):
            kept.append(replies)
            return super().aggregate_train(server_round, replies)

        def configure_evaluate(self, server_round, arrays, config, grid):
            assert kept[-1]
            return []

    with InlineGrid(federation(), 2) as grid:
        Keeping().start(grid=grid, initial_arrays=initial(), num_rounds=1)
    assert isinstance(kept[0], list)


def test_a_message_outside_a_run_raises():
    """Why InlineGrid is opened in a with block."""
    with pytest.raises(RuntimeError, match="is not set"):
        Message(RecordDict(), 1, "train")


@pytest.mark.parametrize(("app", "dialect"), [(federation(query=False), "message"), (old_app(), "numpy")])
def test_apps_refuse_a_query_in_the_words_that_we_know(app, dialect):
    """What identity._REFUSALS tells the two kinds of ClientApp apart by."""
    with InlineGrid(app, 1) as grid:
        (reply,) = grid.send_and_receive([Message(RecordDict(), next(iter(grid.get_node_ids())), "query")])
    assert [known for text, known in _REFUSALS.items() if text in reply.error.reason] == [dialect]


def test_a_numpy_clients_reply_has_the_records_that_we_read():
    """What numpy_records.to_message_reply reads."""
    with InlineGrid(old_app(), 1) as grid:
        record = initial()
        content = RecordDict({"fitins.parameters": record, "fitins.config": ConfigRecord({})})
        (reply,) = grid.send_and_receive([Message(content, next(iter(grid.get_node_ids())), "train")])
    assert set(reply.content) == {"fitres.parameters", "fitres.num_examples", "fitres.metrics", "fitres.status"}
    assert list(reply.content["fitres.parameters"]) == ["0", "1"]
    assert reply.content["fitres.parameters"]["0"].dtype == ""  # never trust these fields
    assert reply.content["fitres.num_examples"] == {"num_examples": 10}
    assert reply.content["fitres.status"]["code"] == 0


def test_a_client_app_without_functions_is_still_callable():
    """What InlineGrid calls."""
    assert callable(ClientApp())
