import threading

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedcome_flwr.simulation import InlineGrid, RunObserver
from fedcome_flwr.simulation import flower_private as flower
from fedcome_flwr.simulation.watched_grid import SimulationStopped, WatchedGrid
from tests.unit.simulation.apps import adding_client, zeros


class Diary(RunObserver):
    def __init__(self):
        self.lines = []

    def sent(self, messages):
        self.lines.append(("sent", len(messages)))

    def replied(self, message, reply):
        assert reply.metadata.reply_to_message_id == message.metadata.message_id
        self.lines.append(("replied", message.metadata.message_type))


class Slow(InlineGrid):
    """Hands out one reply at each look, the last message's first, and of ``lost`` nodes none."""

    lost = ()

    def pull_messages(self, message_ids):
        waiting = [i for i in reversed(self._replies) if i in set(message_ids)]
        waiting = [i for i in waiting if self._replies[i].metadata.src_node_id not in self.lost]
        return super().pull_messages(waiting[:1])


@pytest.fixture
def slow():
    with Slow(adding_client(), 3) as grid:
        yield grid


def messages(grid):
    return [Message(RecordDict({"arrays": zeros(2)}), node_id, "train") for node_id in grid.get_node_ids()]


def test_replies_come_in_the_order_of_the_messages(slow):
    diary = Diary()
    grid = WatchedGrid(slow, diary, threading.Event())
    replies = list(grid.send_and_receive(messages(grid)))
    assert [reply.metadata.src_node_id for reply in replies] == slow.get_node_ids()
    assert diary.lines == [("sent", 3), *[("replied", "train")] * 3]


def test_who_is_late_is_missing(slow):
    slow.lost = slow.get_node_ids()[1:2]
    grid = WatchedGrid(slow, Diary(), threading.Event())
    replies = list(grid.send_and_receive(messages(grid), timeout=0.3))
    assert [reply.metadata.src_node_id for reply in replies] == [slow.get_node_ids()[0], slow.get_node_ids()[2]]


def test_a_real_strategy_runs_on_it(slow):
    diary = Diary()
    result = FedAvg().start(grid=WatchedGrid(slow, diary, threading.Event()), initial_arrays=zeros(2), num_rounds=2)
    assert result.arrays["w"].numpy() == pytest.approx([2.0, 2.0])
    assert len(diary.lines) == 2 * 2 * (1 + 3)


def test_it_waits_for_the_nodes_and_can_be_stopped(slow):
    stopped = threading.Event()
    grid = WatchedGrid(slow, Diary(), stopped)
    grid.wait_for_nodes(3)
    threading.Timer(0.2, stopped.set).start()
    with pytest.raises(SimulationStopped):
        grid.wait_for_nodes(4)
    slow.lost = slow.get_node_ids()
    for call in (grid.get_node_ids, grid.get_nodes, lambda: grid.send_and_receive([]), lambda: grid.pull_messages([])):
        with pytest.raises(SimulationStopped):
            call()


def test_a_wait_for_replies_ends_when_stopped(slow):
    stopped = threading.Event()
    grid = WatchedGrid(slow, Diary(), stopped)
    slow.lost = slow.get_node_ids()
    sent = messages(grid)
    threading.Timer(0.2, stopped.set).start()
    with pytest.raises(SimulationStopped):
        grid.send_and_receive(sent)


@pytest.mark.parametrize("kind", ["ActorDiedError", "ActorUnavailableError", "OutOfMemoryError"])
def test_the_death_of_a_process_is_told_in_plain_words(slow, kind):
    dead = flower.Error(0, f"<class 'ray.exceptions.{kind}'>:<'The actor 850a is unavailable'>")

    class Dying(Slow):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            return [Message(dead, reply_to=Message(RecordDict(), 5, "train")) for _ in replies]

    with Dying(adding_client(), 1) as inner:
        grid = WatchedGrid(inner, Diary(), threading.Event())
        (reply,) = grid.pull_messages(grid.push_messages(messages(grid)))
    first, second = reply.error.reason.splitlines()
    assert first.startswith("the client's process died, twice in a row")
    assert kind in second
