"""Which client is which: from Flower's node ids, random in every run, to keys that last."""

from collections.abc import Mapping
from hashlib import sha256
from logging import getLogger

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .records import label_of

_log = getLogger("flwr")

_QUERY_TIMEOUT = 120.0  # seconds; a client that answers no query in this time is known by its place


def learn_keys(grid: Grid, known: Mapping[int, str]) -> dict[int, str]:
    """The key of every node that is online, asking those that are new.

    A node's key is the name it was registered with; else the ``client-id`` with which its app answers a query; else
    its place in the order of registration, which in simulation is the order of the partitions.

    Parameters
    ----------
    grid
        Where the nodes are.
    known
        Keys learnt before, by node id; they stay as they are.
    """
    nodes = {node.node_id: node for node in grid.get_nodes()}
    new = {node_id: node for node_id, node in nodes.items() if node_id not in known}
    keys = {node_id: node.name for node_id, node in new.items() if node.name}
    keys |= _ask(grid, [node_id for node_id in new if node_id not in keys])
    nameless = sorted((node.registered_at, node_id) for node_id, node in new.items() if node_id not in keys)
    if nameless:
        _log.warning(
            "fedcome: %d clients give no client-id; they are known by their order of registration, which a restart "
            "may change",
            len(nameless),
        )
    keys |= {node_id: f"node-{len(known) + place}" for place, (_, node_id) in enumerate(nameless)}
    return {node_id: known.get(node_id) or keys[node_id] for node_id in nodes}


def client_seed(seed: int, server_round: int, key: str) -> int:
    """A seed for one client in one round, the same on every machine; 0 to 2**63 − 1."""
    digest = sha256(f"{seed}/{server_round}/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _ask(grid: Grid, node_ids: list[int]) -> dict[int, str]:
    """The labels that the nodes' apps give themselves; nodes that give none are absent."""
    if not node_ids:
        return {}
    messages = [Message(RecordDict(), node_id, MessageType.QUERY) for node_id in node_ids]
    replies = grid.send_and_receive(messages, timeout=_QUERY_TIMEOUT)
    labels = {reply.metadata.src_node_id: label_of(reply) for reply in replies}
    return {node_id: label for node_id, label in labels.items() if label is not None and node_id in node_ids}
