"""Reading the clients' replies: what can be used, by client key, and why the rest cannot."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import Message, RecordDict

from ..core.updates import ClientUpdate
from .numpy_records import is_numpy_reply, to_message_reply
from .records import ReplyError, to_metrics, to_update

Keys = Mapping[int, str]


def read_updates(
    replies: Iterable[Message], keys: Keys, names: Sequence[str], *, arrays_key: str, weight_key: str
) -> tuple[list[ClientUpdate], dict[str, RecordDict], dict[str, str]]:
    """The training replies as client updates, their contents by key, and the clients whose reply cannot be read.

    Parameters
    ----------
    replies
        Those of :func:`expected_replies`, in any order.
    keys
        Client key by node id, of the nodes that were asked.
    names
        The model's arrays in order, for NumPyClients, whose arrays have no names.
    arrays_key, weight_key
        The strategy's record names.
    """
    updates: list[ClientUpdate] = []
    contents: dict[str, RecordDict] = {}
    refused: dict[str, str] = {}
    for key, message in _by_key(replies, keys):
        try:
            content = _content(message, names, arrays_key, weight_key)
            updates.append(to_update(key, content, arrays_key=arrays_key, weight_key=weight_key))
            contents[key] = content
        except ReplyError as error:
            refused[key] = str(error)
    return updates, contents, refused


def read_evaluations(
    replies: Iterable[Message], keys: Keys, *, weight_key: str
) -> tuple[dict[str, dict[str, float]], list[RecordDict], dict[str, str]]:
    """The evaluation replies' numbers by client key, their contents, and the clients whose reply cannot be read."""
    evaluations: dict[str, dict[str, float]] = {}
    contents: list[RecordDict] = []
    refused: dict[str, str] = {}
    for key, message in _by_key(replies, keys):
        try:
            content = _content(message, (), "", weight_key)
            metrics = to_metrics(content, weight_key)
            if not 0 < metrics[weight_key] < np.inf:
                raise ReplyError(f"{weight_key}: expected a positive number, found {metrics[weight_key]!r}")
            evaluations[key] = metrics
            contents.append(content)
        except ReplyError as error:
            refused[key] = str(error)
    return evaluations, contents, refused


def expected_replies(replies: Sequence[Message], keys: Keys, group_id: str) -> tuple[list[Message], int]:
    """The replies of nodes that were asked, to this round's messages, and the number of all others.

    Flower's own word for a node that vanished comes from the SuperLink's id and is one of the others: who is missing
    shows by who was asked.
    """
    kept = [
        reply for reply in replies if reply.metadata.src_node_id in keys and reply.metadata.group_id in ("", group_id)
    ]
    return kept, len(replies) - len(kept)


def _by_key(replies: Iterable[Message], keys: Keys) -> list[tuple[str, Message]]:
    """The replies with their clients' keys, sorted by key, whatever order they arrived in."""
    return sorted(((keys[m.metadata.src_node_id], m) for m in replies), key=lambda pair: pair[0])


def _content(message: Message, names: Sequence[str], arrays_key: str, weight_key: str) -> RecordDict:
    if message.has_error():
        raise ReplyError(f"its app failed (code {message.error.code}): {message.error.reason}")
    if is_numpy_reply(message.content):
        return to_message_reply(message.content, names, arrays_key=arrays_key, weight_key=weight_key)
    return message.content
