"""What goes wrong between server and clients, and that model and state stay whole."""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message

from fedcome_flwr import (
    ConsensusSelection,
    FedCOMEStrategy,
    UpdateStrategy,
    fedcome,
)
from fedcome_flwr.server.patience import NoUsableReplyError
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import bytes_of, federation, initial
from tests.unit.server._methods import each_method, remembering


class Faulty(InlineGrid):
    """``change(replies, round)`` gives what arrives of a round's training replies; all of them stay in ``sent``."""

    def __init__(self, app, nodes, change, online=None):
        super().__init__(app, nodes, debug=True)
        self.change, self.online, self.sent, self.number = change, online, [], 0

    def get_node_ids(self):
        ids = super().get_node_ids()
        return ids if self.online is None else [ids[place] for place in self.online(self.number)]

    def get_nodes(self):
        online, ids = set(self.get_node_ids()), self.online
        self.online = None
        try:
            return [node for node in super().get_nodes() if node.node_id in online]
        finally:
            self.online = ids

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if messages and messages[0].metadata.message_type == "train":
            self.number += 1
            self.sent.append(replies)
            return self.change(list(replies), self.number)
        return replies


def run(change=lambda replies, number: replies, *, method=None, nodes=4, rounds=4, online=None, app=None, **options):
    reports = []
    strategy = UpdateStrategy(
        method=method or fedcome(), on_round=lambda report: reports.append(report) or None, min_train_nodes=1, **options
    )
    strategy.min_available_nodes = 1
    with Faulty(app or remembering()[0], nodes, change, online) as grid:
        result = strategy.start(grid=grid, initial_arrays=initial(), num_rounds=rounds)
    return result, strategy, reports


def test_some_replies_missing_are_listed_by_key():
    _, strategy, reports = run(lambda replies, number: replies[: 2 if number == 2 else 4])
    assert [report.missing for report in reports] == [(), ("2", "3"), (), ()]
    assert [len(report.clients) for report in reports] == [4, 2, 4, 4]
    assert strategy.state.round == 4


def test_all_replies_missing_leave_model_and_table():
    result, _, reports = run(lambda replies, number: [] if number > 1 else replies, rounds=3)
    alone, _, _ = run(rounds=1)
    assert bytes_of(result.arrays) == bytes_of(alone.arrays)
    assert [report.unchanged for report in reports] == [None, "no usable reply", "no usable reply"]
    assert reports[1].missing == ("0", "1", "2", "3")


def test_a_node_that_vanished_is_found_by_who_was_asked(caplog):
    """Flower answers in its place, from the SuperLink's id, 1."""

    def vanish(replies, number):
        lost = replies[0]
        error = Message(Error(5, "Node is unavailable"), reply_to=lost)
        error.metadata.__dict__["_src_node_id"] = 1
        return [error, *replies[1:]]

    with caplog.at_level(logging.WARNING, "flwr"):
        _, _, reports = run(vanish, rounds=1)
    assert reports[0].missing == ("0",)
    assert reports[0].stray_replies == 1
    assert "1 replies that nobody waited for" in caplog.text


@pytest.mark.parametrize("when", ["late", "early"])
def test_replies_of_another_round_do_not_count(when):
    kept = {}

    def mix(replies, number):
        kept[number] = list(replies)  # the strategy empties the list that it is given
        if number == 2:
            return [*kept[1], *replies] if when == "late" else list(kept[1])
        return replies

    result, _, reports = run(mix, rounds=2)
    assert reports[1].stray_replies == 4
    if when == "late":
        assert bytes_of(result.arrays) == bytes_of(run(rounds=2)[0].arrays)
    else:
        assert reports[1].missing == ("0", "1", "2", "3")


def test_the_same_reply_twice_is_no_reply():
    _, _, reports = run(lambda replies, number: [*replies, replies[1]], rounds=1)
    assert reports[0].clients == ("0", "2", "3")
    assert reports[0].left_out == {"1": "expected one reply, found 2 under this key"}


def test_a_node_that_was_not_asked_does_not_count():
    def push(replies, number):
        return [*replies, *grid_replies[number - 1 : number]]

    grid_replies = []
    app, _ = remembering()
    with InlineGrid(app, 4, debug=True) as grid:  # the replies of all four, to the same rounds
        strategy = UpdateStrategy(method=fedcome(), on_round=lambda report: None)
        original = grid.send_and_receive

        def keep(messages, *, timeout=None):
            replies = original(messages, timeout=timeout)
            grid_replies.extend(r for r in replies if r.has_content() and "arrays" in r.content)
            return replies

        grid.send_and_receive = keep
        strategy.start(grid=grid, initial_arrays=initial(), num_rounds=1)
    third = [reply for reply in grid_replies if reply.content["client"]["client-id"] == "3"]
    grid_replies[:] = third * 3
    _, _, reports = run(push, nodes=4, rounds=2, online=lambda number: [0, 1, 2])
    assert [report.clients for report in reports] == [("0", "1", "2")] * 2
    assert [report.stray_replies for report in reports] == [1, 1]


def test_an_evaluation_that_nobody_asked_for_does_not_count():
    class Twice(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            replies = super().send_and_receive(messages, timeout=timeout)
            if messages and messages[0].metadata.message_type == "evaluate":
                old.append(replies)
                return [*replies, *old[0]] if len(old) > 1 else replies
            return replies

    old, reports = [], []
    strategy = FedCOMEStrategy(on_round=lambda report: reports.append(report) or None)
    with Twice(federation(), 3) as grid:
        strategy.start(grid=grid, initial_arrays=initial(), num_rounds=2)
    assert [sorted(report.evaluations) for report in reports] == [["0", "1", "2"]] * 2


def test_patience_ends_in_an_error_with_the_first_reason(tmp_path):
    path = tmp_path / "run.npz"
    strategy = UpdateStrategy(method=fedcome(), patience=3, checkpoint=path)
    with InlineGrid(_failing_from(3), 3) as grid:
        text = r"rounds 3 to 5 changed nothing \(patience=3\); the first reason: client 0: its app failed .*disk full"
        with pytest.raises(NoUsableReplyError, match=text):
            strategy.start(grid=grid, initial_arrays=initial(), num_rounds=9)
    assert strategy.state.round == 5
    again = UpdateStrategy(method=fedcome(), checkpoint=path)
    assert bytes_of(again.restore(path)) == bytes_of(run(nodes=3, rounds=2, app=federation())[0].arrays)


def _failing_from(first: int):
    app = federation()

    def answer(message, context):
        if message.metadata.message_type == "train" and message.content["config"]["server-round"] >= first:
            raise OSError("disk full")
        return app(message, context)

    return answer


def test_a_usable_round_restores_patience_and_none_never_ends():
    def now_and_then(replies, number):
        return replies if number % 3 == 0 else []

    _, _, reports = run(now_and_then, rounds=9, patience=3)
    assert sum(report.unchanged is None for report in reports) == 3
    _, _, reports = run(lambda replies, number: [], rounds=12, patience=None)
    assert len(reports) == 12


def test_waiting_for_nodes_has_an_end():
    strategy = FedCOMEStrategy(min_available_nodes=5, node_timeout=0.01)
    with (
        InlineGrid(federation(), 2) as grid,
        pytest.raises(TimeoutError, match=r"expected at least 5 nodes online, found 2 after 0\.01 s; start more"),
    ):
        strategy.start(grid=grid, initial_arrays=initial(), num_rounds=1)


@each_method
def test_clients_join_late_leave_and_come_back(method):
    present = {0: [0, 1, 2], 1: [0, 1, 2, 3, 4], 2: [3, 4], 3: [0, 4], 4: [0, 1, 2, 3, 4], 5: [0, 1, 2, 3, 4]}
    result, strategy, reports = run(
        method=method, nodes=5, rounds=6, online=lambda number: present[min(number, 5)], selector=ConsensusSelection()
    )
    assert [len(report.clients) for report in reports] == [3, 5, 2, 2, 5, 5]
    assert not any(report.left_out or report.missing for report in reports)
    assert np.isfinite(result.arrays["w"].numpy()).all()
    if method.rule.has_memory:
        assert dict(strategy.state.memory.accepted) == dict.fromkeys("01234", 6)
        assert strategy.state.memory.epoch == 0


@each_method
def test_lost_replies_never_make_memories_diverge(method):
    """The clients of `remembering` answer with what they were told; the server must have told them what it counted."""
    told = []
    app, _ = remembering()

    def listening(message, context):
        if message.metadata.message_type == "train":
            told.append((context.node_config["partition-id"], message.content["config"].get("accepted-round")))
        return app(message, context)

    arrived = []

    def lose(replies, number):
        kept = [reply for place, reply in enumerate(replies) if (place + number) % 3]
        arrived.append({reply.content["client"]["client-id"] for reply in kept})
        return kept

    _, _, reports = run(lose, method=method, rounds=6, app=listening)
    assert not any(report.left_out for report in reports)
    if not method.rule.has_memory:
        return
    for number in range(1, 6):
        for client in range(4):
            last = max((r for r in range(number) if str(client) in arrived[r]), default=-1) + 1
            assert (client, last) in told[4 * number : 4 * number + 4]


def test_a_label_impersonates_nobody_where_nodes_authenticate():
    from tests.unit.server.test_identity import Nodes, node

    strategy = UpdateStrategy(authenticated=True)
    with Nodes([node(1, key=b"one"), node(2, key=b"two")], {1: "hospital", 2: "hospital"}) as grid:
        nodes, twins = strategy._directory.refresh(grid)
    assert not twins
    assert all(key.startswith("key-") for key in nodes)


def test_the_configuration_of_replies_cannot_change_the_round():
    """A client that sets another group or round in its records changes nothing: only Flower's metadata count."""
    app, _ = remembering()

    def odd(message, context):
        reply = app(message, context)
        reply.content["config"] = ConfigRecord({"server-round": 99})
        return reply

    assert bytes_of(run(app=odd)[0].arrays) == bytes_of(run()[0].arrays)
