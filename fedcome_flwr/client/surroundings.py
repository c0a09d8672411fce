"""What a client learns from Flower beside the model: who it is, where its memory is kept, the server's control."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from ..core.arrays import Arrays
from .memory import ContextStore, FileStore, MemoryStore, to_numpy

_CONTROL = "control"
_CONTROL_IN_STATE = "fedcome-received-control"


def identity_of(client_id: str | None, context: Context) -> str | None:
    """The client's own name, else that of the node's configuration. Node ids are drawn anew in every run."""
    found = client_id or context.node_config.get("client-id", context.node_config.get("partition-id"))
    return None if found is None else str(found)


def store_of(state_dir: str | Path | None, client_id: str | None, context: Context) -> MemoryStore:
    """Where the client's memory is kept: in a file if there is a folder, else in Flower's state.

    The folder never comes with a message: the server has no say in where a client writes.

    Raises
    ------
    ValueError
        There is a folder, but the client has no name for its file.
    """
    folder = state_dir or context.node_config.get("state-dir") or context.run_config.get("state-dir")
    if not folder:
        return ContextStore(context.state)
    if client_id is None:
        raise ValueError("state_dir: the client needs a name for its file: give client_id, or client-id to the node")
    return FileStore(Path(str(folder)), client_id)


def control_of(message: Message) -> Arrays | None:
    """The control variate that came with a message."""
    record = message.content.array_records.get(_CONTROL)
    return None if record is None else to_numpy(record)


def memory_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Give a ``FedCOMEClient`` the server's control variate, which a NumPyClient has no argument for.

    ::

        app = ClientApp(client_fn=client_fn, mods=[memory_mod])

    SCAFFOLD and FedDC need it; under other methods it does nothing.
    """
    record = message.content.array_records.get(_CONTROL) if message.metadata.message_type == MessageType.TRAIN else None
    if record is None:
        return call_next(message, context)
    context.state[_CONTROL_IN_STATE] = ArrayRecord({**record})
    try:
        return call_next(message, context)
    finally:
        context.state.pop(_CONTROL_IN_STATE, None)


def control_in(context: Context) -> Arrays | None:
    """The control variate that :func:`memory_mod` took from the message."""
    record = context.state.array_records.get(_CONTROL_IN_STATE)
    return None if record is None else to_numpy(record)
