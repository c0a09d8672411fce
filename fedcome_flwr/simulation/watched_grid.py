"""Flower's grid, with somebody watching."""

import threading
import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from . import flower_private as flower
from .observer import RunObserver

_DEATHS = ("ray.exceptions.Actor", "ray.exceptions.OutOfMemory", "ray.exceptions.WorkerCrashed")
_LOOK_EVERY = 0.05  # seconds between two looks for replies; Flower's engine moves messages every 0.1 s


class SimulationStopped(RuntimeError):
    """The simulation is over while its ServerApp still runs."""


class WatchedGrid(Grid):
    """Passes everything on to another grid, tells an observer of it, and can be stopped.

    Replies to ``send_and_receive`` come back in the order of the messages, so that sums over them do not depend on
    which client was fastest.

    Parameters
    ----------
    grid
        The grid that does the work.
    observer
        Sees every message and every reply.
    stopped
        Once set, every call raises :class:`SimulationStopped`: nobody would answer, and Flower's own grid would wait
        for an hour.
    """

    def __init__(self, grid: Grid, observer: RunObserver, stopped: threading.Event) -> None:
        self._grid = grid
        self._observer = observer
        self._stopped = stopped
        self._waiting: dict[str, Message] = {}  # messages without a reply, by id

    @property
    def run(self) -> flower.Run:
        """The run of the grid."""
        return self._grid.run

    def set_run(self, run: flower.Run) -> None:
        """Pass on."""
        self._grid.set_run(run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's deprecated way; ``Message(...)`` is the present one)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the nodes that are online."""
        self._check()
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[flower.NodeInfo]:
        """What is known of the nodes that are online."""
        self._check()
        return self._grid.get_nodes()

    def wait_for_nodes(self, number: int) -> None:
        """Return once so many nodes are online.

        Flower starts the ServerApp before it registers the nodes, and FedAvg then draws its cohort from those that it
        finds: two of a hundred, for example.
        """
        while len(list(self.get_node_ids())) < number:
            time.sleep(_LOOK_EVERY)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        self._check()
        messages = list(messages)
        self._observer.sent(messages)
        message_ids = list(self._grid.push_messages(messages))
        by_id = {message.metadata.message_id: message for message in messages}
        self._waiting |= {message_id: by_id[message_id] for message_id in message_ids}
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        self._check()
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            _explain(reply)
            if (message := self._waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
                self._observer.replied(message, reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and return the replies that come within ``timeout`` seconds, in the messages' order."""
        deadline = None if timeout is None else time.monotonic() + timeout
        order = list(self.push_messages(messages))
        replies: dict[str, Message] = {}
        while len(replies) < len(order) and (deadline is None or time.monotonic() < deadline):
            missing = [message_id for message_id in order if message_id not in replies]
            replies |= {reply.metadata.reply_to_message_id: reply for reply in self.pull_messages(missing)}
            if len(replies) < len(order):
                self._stopped.wait(_LOOK_EVERY)
        for message_id in order:  # whoever is late is not heard of any more
            self._waiting.pop(message_id, None)
        return [replies[message_id] for message_id in order if message_id in replies]

    def _check(self) -> None:
        if self._stopped.is_set():
            raise SimulationStopped("the simulation has ended, so its clients answer no more")


def _explain(reply: Message) -> None:
    """Say first, in the error reply of a client whose process died, that it did; Ray's text is about its actors."""
    reason = (reply.error.reason or "") if reply.has_error() else ""
    if any(death in reason for death in _DEATHS):
        explanation = "the client's process died, twice in a row: out of memory, or a crash in compiled code"
        reply.error = flower.Error(reply.error.code, f"{explanation}\n{reason}")
