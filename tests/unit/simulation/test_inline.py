import re

import flwr.app
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcome_flwr.simulation import InlineGrid, RunObserver
from tests.unit.simulation.apps import adding_client, zeros


def client(train) -> ClientApp:
    app = ClientApp()
    app.train()(train)
    return app


def ask(grid: InlineGrid, content: RecordDict | None = None, nodes: list[int] | None = None) -> list[Message]:
    content = RecordDict() if content is None else content
    nodes = grid.get_node_ids() if nodes is None else nodes
    return grid.send_and_receive([Message(content, node, "train") for node in nodes])


def empty_reply(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def test_fedavg_runs_on_it():
    with InlineGrid(adding_client(), 4) as grid:
        result = FedAvg().start(grid=grid, initial_arrays=zeros(2, 3), num_rounds=3)
    np.testing.assert_allclose(result.arrays["w"].numpy(), np.full((2, 3), 3 * np.mean([0, 1, 2, 3])))
    assert [result.train_metrics_clientapp[r]["calls"] for r in (1, 2, 3)] == [1, 2, 3]  # state lasts
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == 0.5


def test_nodes_are_known_and_ordered_by_registration():
    with InlineGrid(adding_client(), 12) as grid, InlineGrid(adding_client(), 12) as again:
        nodes = grid.get_nodes()
        assert [node.node_id for node in nodes] == grid.get_node_ids() == again.get_node_ids()
        assert len(set(grid.get_node_ids())) == 12
        assert min(grid.get_node_ids()) >= 2**60
        assert sorted(grid.get_node_ids()) != grid.get_node_ids()
        assert max(grid.get_node_ids()) < 2**63  # fits a record's signed integers
        assert {(node.status, node.name, node.public_key) for node in nodes} == {("online", "", b"")}
        registered = [node.registered_at for node in nodes]
        assert registered == sorted(set(registered))
        partitions = [context.node_config for context in grid.contexts]
        assert partitions == [{"partition-id": i, "num-partitions": 12} for i in range(12)]
        assert [context.node_id for context in grid.contexts] == grid.get_node_ids()


def test_replies_keep_the_order_of_the_messages():
    with InlineGrid(client(empty_reply), 5) as grid:
        nodes = grid.get_node_ids()[::-1]
        messages = [Message(RecordDict(), node, "train") for node in nodes]
        replies = grid.send_and_receive(messages)
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    sent = [message.metadata.message_id for message in messages]
    assert [reply.metadata.reply_to_message_id for reply in replies] == sent
    assert len({reply.metadata.message_id for reply in replies} | set(sent)) == 10


def test_push_and_pull():
    with InlineGrid(client(empty_reply), 2) as grid:
        ids = grid.push_messages([Message(RecordDict(), node, "train") for node in grid.get_node_ids()])
        assert [m.metadata.reply_to_message_id for m in grid.pull_messages(ids[1:])] == ids[1:]
        assert [m.metadata.reply_to_message_id for m in grid.pull_messages(ids)] == ids[:1]
        assert grid.pull_messages([*ids, "unknown"]) == []


def test_a_client_cannot_change_what_others_receive():
    seen = []

    def vandal(message: Message, context: Context) -> Message:
        content = message.content
        seen.append((content["config"]["lr"], list(content["config"]["l"]), content["arrays"]["w"].numpy().sum()))
        content["config"]["lr"] = 9.0
        content["config"]["l"].append(9)
        array = content["arrays"]["w"].numpy()
        array += 9
        content["arrays"]["w"].data = Array(array).data
        content["arrays"]["new"] = Array(array)
        content["mine"] = MetricRecord({"x": 1})
        context.run_config["lr"] = 9.0
        return Message(RecordDict(), reply_to=message)

    shared = RecordDict({"arrays": zeros(2), "config": ConfigRecord({"lr": 0.1, "l": [1]})})
    run_config = {"lr": 0.5}
    with InlineGrid(client(vandal), 3, run_config=run_config) as grid:
        ask(grid, shared)
    assert seen == [(0.1, [1], 0.0)] * 3
    assert shared["config"] == {"lr": 0.1, "l": [1]}
    assert list(shared) == ["arrays", "config"]
    assert list(shared["arrays"]) == ["w"]
    assert shared["arrays"]["w"].numpy().sum() == 0
    assert run_config == {"lr": 0.5}


def test_a_reply_is_not_the_clients_state():
    def stateful(message: Message, context: Context) -> Message:
        context.state.setdefault("arrays", zeros(2))
        context.state.setdefault("metrics", MetricRecord({"n": 0, "l": [1.0]}))
        context.state["metrics"]["n"] += 1
        return Message(context.state, reply_to=message)

    with InlineGrid(client(stateful), 1) as grid:
        (first,) = ask(grid)
        first.content["arrays"].clear()
        first.content["metrics"]["l"].append(2.0)
        (second,) = ask(grid)
    assert (first.content["metrics"]["n"], second.content["metrics"]["n"]) == (1, 2)
    assert list(second.content["arrays"]) == ["w"]
    assert grid.contexts[0].state["metrics"]["l"] == [1.0]


def test_array_bytes_are_shared_not_copied():
    received = []

    def keep(message: Message, context: Context) -> Message:
        received.append(message.content["arrays"]["w"].data)
        return empty_reply(message, context)

    arrays = zeros(1000)
    with InlineGrid(client(keep), 2) as grid:
        ask(grid, RecordDict({"arrays": arrays}))
    assert all(data is arrays["w"].data for data in received)


def failing(message: Message, context: Context) -> Message:
    if context.node_config["partition-id"] == 1:
        raise ValueError("\x1b[31mno data\x1b[0m here")
    return Message(RecordDict(), reply_to=message)


def test_a_client_that_raises_gives_an_error_reply():
    with InlineGrid(client(failing), 3) as grid:
        replies = ask(grid)
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[1].error.code == 2  # CLIENT_APP_RAISED_EXCEPTION
    reason = replies[1].error.reason
    assert reason.splitlines()[0] == "ValueError: no data here"
    assert re.search(r'File ".*test_inline.py", line \d+, in failing', reason)
    assert "\x1b" not in reason
    assert replies[1].metadata.src_node_id == grid.contexts[1].node_id


def test_debug_lets_the_exception_through():
    with (
        InlineGrid(client(failing), 3, debug=True) as grid,
        pytest.raises(ValueError, match="no data") as caught,
    ):
        ask(grid)
    assert grid.exception is caught.value


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda message, context: None, "must return a Message, got NoneType"),
        (lambda message, context: message, "reply_to=message"),
    ],
)
def test_what_is_no_reply_becomes_an_error_reply(answer, text):
    with InlineGrid(client(answer), 1) as grid:
        (reply,) = ask(grid)
    assert text in reply.error.reason.splitlines()[0]


def test_exit_in_a_client_is_an_error_of_that_client():
    def leave(message: Message, context: Context) -> Message:
        raise SystemExit(3)

    with InlineGrid(client(leave), 1) as grid:
        (reply,) = ask(grid)
    assert reply.error.reason.startswith("SystemExit: 3")


def test_an_unknown_node_is_refused():
    with (
        InlineGrid(client(empty_reply), 2) as grid,
        pytest.raises(ValueError, match="message to node 7, which"),
    ):
        ask(grid, nodes=[7])


def test_no_nodes_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        InlineGrid(adding_client(), 0)


def test_an_unopened_grid_says_how_to_open_it():
    with pytest.raises(RuntimeError, match="with InlineGrid"):
        FedAvg().start(grid=InlineGrid(adding_client(), 2), initial_arrays=zeros(1), num_rounds=1)


def test_the_process_is_as_before_afterwards():
    with InlineGrid(client(empty_reply), 1) as grid, InlineGrid(client(empty_reply), 1):
        ask(grid)
    with pytest.raises(RuntimeError, match="not set"):
        flwr.app.Message(RecordDict(), 1, "train")


def test_the_observer_sees_messages_and_replies():
    class Counter(RunObserver):
        def __init__(self):
            self.events = []

        def sent(self, messages):
            self.events.append(len(messages))

        def replied(self, message, reply):
            self.events.append((message.metadata.message_id == reply.metadata.reply_to_message_id, reply.has_error()))

    counter = Counter()
    with InlineGrid(client(failing), 2, observer=counter) as grid:
        ask(grid)
    assert counter.events == [2, (True, False), (True, True)]


def test_arrays_of_any_kind_travel():
    arrays = ArrayRecord(
        {"f16": Array(np.ones(2, np.float16)), "0d": Array(np.array(3)), "empty": Array(np.ones((0, 2)))}
    )

    def echo(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    with InlineGrid(client(echo), 1) as grid:
        (reply,) = ask(grid, RecordDict({"arrays": arrays}))
    for name, array in arrays.items():
        np.testing.assert_array_equal(reply.content["arrays"][name].numpy(), array.numpy())
        assert reply.content["arrays"][name].dtype == array.dtype


def test_a_thread_that_looks_for_nodes_after_the_end_is_not_disturbed():
    """Flower's legacy servers have one, and it outlives a server that raises."""
    with InlineGrid(adding_client(), 2) as grid:
        open_ids = grid.get_node_ids()
    assert grid.get_node_ids() == open_ids
