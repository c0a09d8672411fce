"""Everything that the inline grid takes from Flower's private modules, in one place.

Flower's own processes give each task an identity and let the SuperLink number the messages. One process
without a SuperLink has to do both. What is used here may move in any Flower release;
``test_flower_contract.py`` says what was relied on and with which release.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from flwr.app import Message
from flwr.app.error import Error
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

CLIENT_APP_RAISED_EXCEPTION: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
ONLINE = "online"
RUN_ID = 1  # Flower draws it at random; one process holds one run

__all__ = [
    "CLIENT_APP_RAISED_EXCEPTION",
    "ONLINE",
    "RUN_ID",
    "Error",
    "NodeInfo",
    "Run",
    "empty_run",
    "identity_is_set",
    "number_message",
    "server_identity",
]


def empty_run() -> Run:
    """Run record of the one run that a process holds."""
    return Run.create_empty(RUN_ID)


def identity_is_set() -> bool:
    """Whether ``Message(...)`` works at the moment: it asks ``TaskIdentity`` for its sender and run."""
    return None not in (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)


@contextmanager
def server_identity() -> Iterator[None]:
    """Let this process speak as the ServerApp of ``RUN_ID``; what was set before comes back afterwards."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def number_message(message: Message, message_id: str | None = None) -> str:
    """Give a message its id and run, as the SuperLink does when it takes the message; returns the id."""
    message_id = message_id or str(uuid4())
    message.metadata.__dict__["_message_id"] = message_id
    message.metadata.__dict__["_run_id"] = RUN_ID
    return message_id
