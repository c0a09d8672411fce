"""A Flower grid whose SuperNodes are function calls."""

import hashlib
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Self

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from . import flower_private as flower
from .isolation import detached
from .observer import ConfigValue, RunObserver, is_query
from .reply import checked_reply, error_reply


class InlineGrid(Grid):
    """Runs a ClientApp in this process, one message after the other, at once.

    A real strategy runs on it as on Flower's own grids, without Ray, daemons or start-up time, and a
    breakpoint in the client works as anywhere::

        with InlineGrid(client_app, num_supernodes=10) as grid:
            result = FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=3)

    The ``with`` block gives this process the identity that Flower's ``Message`` asks for, and takes it back.

    Messages and replies are copied on their way, as a network would do, so a client cannot change what the
    server or another client holds. Each SuperNode keeps its ``Context``, and so its ``state``, for the life
    of the grid. Node ids are the same in every run but in no useful order; ``registered_at`` rises with the
    partition id, as in Flower's simulation.

    Replies come back in the order of the messages. A client that raises gives an error reply whose first
    line is the exception. Time limits do nothing: a call in the same thread cannot be interrupted, so
    ``timeout`` is not looked at and messages do not expire, whatever their ``ttl``.

    Legacy servers (``ServerAppComponents``) send from threads of their own. They too get one client at a
    time, but in the order in which their threads come.

    Parameters
    ----------
    client_app
        What each SuperNode runs.
    num_supernodes
        How many there are; SuperNode ``i`` has ``{"partition-id": i, "num-partitions": num_supernodes}`` as
        its ``context.node_config``.
    run_config
        The run configuration that clients find in ``context.run_config``, each in a copy of its own.
    debug
        Let a client's exception through to the caller, and so to the debugger. A legacy server collects it
        as one of its failures instead; later sends then raise it again. A query that fails stays an error
        reply: it asks who the client is, and many apps have no answer.
    observer
        Sees every message and every reply.

    Attributes
    ----------
    contexts
        The SuperNodes' contexts by partition id.
    exception
        With ``debug``, the first exception that a client raised.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_supernodes: int,
        *,
        run_config: Mapping[str, ConfigValue] | None = None,
        debug: bool = False,
        observer: RunObserver | None = None,
    ) -> None:
        if num_supernodes < 1:
            raise ValueError(f"num_supernodes must be at least 1, got {num_supernodes}")
        self.exception: BaseException | None = None
        self.contexts = tuple(
            Context(
                run_id=flower.RUN_ID,
                node_id=_node_id(partition),
                node_config={"partition-id": partition, "num-partitions": num_supernodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for partition in range(num_supernodes)
        )
        self._client_app = client_app
        self._context_of = {context.node_id: context for context in self.contexts}
        self._debug = debug
        self._observer = observer or RunObserver()
        self._run = flower.empty_run()
        self._replies: dict[str, Message] = {}  # pushed messages' replies until they are pulled
        self._one_at_a_time = threading.RLock()
        self._identity = ExitStack()
        self._closed = False

    def __enter__(self) -> Self:
        self._identity.enter_context(flower.server_identity())
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True  # first: a legacy server's thread may be looking for new nodes at this moment
        self._identity.close()

    @property
    def run(self) -> flower.Run:
        """The one run of this process."""
        return self._run

    def set_run(self, run: flower.Run) -> None:
        """Refuse: the SuperNodes' contexts belong to the run that the grid was made with."""
        raise NotImplementedError("an InlineGrid has one run for life; make another grid for another run")

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

    def get_node_ids(self) -> list[int]:
        """Node ids in the order of the partition ids."""
        if not self._closed and not flower.identity_is_set():  # else the caller's next line, Message(...), fails
            raise RuntimeError("Flower's Message needs to know its run; open the grid: `with InlineGrid(...) as grid:`")
        return list(self._context_of)

    def get_nodes(self) -> list[flower.NodeInfo]:
        """What is known of the SuperNodes: id, online, time of registration; no name and no key."""
        start = datetime(2000, 1, 1, tzinfo=UTC)  # made up, so that two runs see the same
        registered = ((start + timedelta(seconds=i)).isoformat() for i in range(len(self.contexts)))
        return [
            flower.NodeInfo(
                node_id=node_id,
                status=flower.ONLINE,
                registered_at=at,
                last_activated_at=at,
                online_until=float("inf"),
            )
            for node_id, at in zip(self.get_node_ids(), registered, strict=True)
        ]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Let the addressed clients answer and return the replies in order; ``timeout`` is not looked at."""
        messages = list(messages)
        with self._one_at_a_time:
            self._observer.sent(messages)
        return [self._deliver(message) for message in messages]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let the addressed clients answer now and keep the replies for :meth:`pull_messages`."""
        replies = self.send_and_receive(messages)
        self._replies |= {reply.metadata.reply_to_message_id: reply for reply in replies}
        return [reply.metadata.reply_to_message_id for reply in replies]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to pushed messages, each once; ids without a waiting reply are passed over."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def _deliver(self, message: Message) -> Message:
        context = self._context_of.get(message.metadata.dst_node_id)
        if context is None:
            raise ValueError(
                f"message to node {message.metadata.dst_node_id}, which is none of this grid's "
                f"{len(self.contexts)} nodes; ask get_node_ids() in each run"
            )
        message_id = flower.number_message(message)
        delivered = Message(
            detached(message.content),
            message.metadata.dst_node_id,
            message.metadata.message_type,
            ttl=message.metadata.ttl,
            group_id=message.metadata.group_id,
        )
        flower.number_message(delivered, message_id)
        with self._one_at_a_time:
            reply = self._reply(delivered, context)
            flower.number_message(reply)
            self._observer.replied(message, reply)
        return reply

    def _reply(self, message: Message, context: Context) -> Message:
        if self.exception is not None:
            raise self.exception
        try:
            reply = checked_reply(self._client_app, message, context)
            if reply.has_content():
                reply.content = detached(reply.content)
        except (Exception, SystemExit) as error:  # exit() would end a SuperNode, not the server
            if self._debug and not is_query(message):
                self.exception = error
                raise
            return error_reply(error, message)
        return reply


def _node_id(partition: int) -> int:
    """A large number without order, as Flower's random ones, so that nobody takes it for the partition id."""
    digest = hashlib.sha256(f"supernode {partition}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 3 | 1 << 60
