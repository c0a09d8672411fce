"""Which client is which: from Flower's node ids, random in every run, to keys that last."""

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from logging import getLogger
from time import monotonic, sleep
from typing import Literal

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .numpy_records import is_numpy_reply
from .records import label_of

_log = getLogger("flwr")
_QUERY_TIMEOUT = 120.0  # seconds; a client that answers no query in this time is known by its place

# How Flower's two kinds of ClientApp refuse a query that they have no answer for (see the contract tests).
_REFUSALS = {"No query function registered": "message", "Invalid message type: query": "numpy"}

Dialect = Literal["message", "numpy"]


class Directory:
    """The clients by node id: the key that each is known by, and the records that its app understands.

    A client's key is the name that its node was registered with. Where no node has a name it is the ``client-id``
    with which the app answers a query, else the node's place in the order of registration, which in simulation is
    the order of the partitions. Where some nodes have names, so that SuperNodes authenticate, the others are known
    by their public keys: what a client says of itself counts only where nobody has proved who they are.

    Parameters
    ----------
    authenticated
        Whether SuperNodes authenticate though none has a name, which Flower does not tell: a label then counts
        nowhere.

    Attributes
    ----------
    keys
        Client key by node id, of all nodes ever seen.
    """

    def __init__(self, *, authenticated: bool = False) -> None:
        self.keys: dict[int, str] = {}
        self._authenticated = authenticated
        self._dialects: dict[int, Dialect] = {}

    def refresh(self, grid: Grid) -> tuple[dict[str, int], dict[str, str]]:
        """The nodes that are online by client key, and the keys that none may use, with the reason.

        Two online nodes under one key are both left out: nobody can tell to which of them the key's history
        belongs. Nodes that are new are asked who they are.
        """
        nodes = {node.node_id: node for node in grid.get_nodes()}
        new = [node for node_id, node in nodes.items() if node_id not in self.keys]
        authenticated = self._authenticated or any(node.name for node in nodes.values())
        labels = self._ask(grid, [node.node_id for node in new])
        nameless = []
        for node in sorted(new, key=lambda node: (node.registered_at, node.node_id)):
            if node.name:
                self.keys[node.node_id] = node.name
            elif authenticated and node.public_key:
                self.keys[node.node_id] = f"key-{sha256(node.public_key).hexdigest()[:16]}"
            elif not authenticated and node.node_id in labels:
                self.keys[node.node_id] = labels[node.node_id]
            else:
                nameless.append(node)
        for place, node in enumerate(nameless, start=len(self.keys)):
            self.keys[node.node_id] = f"node-{place:05d}"
        if nameless:
            _log.warning(
                "fedcome: %d clients give no client-id; they are known by their order of registration, which a restart "
                "may change",
                len(nameless),
            )
        return _unique({node_id: self.keys[node_id] for node_id in nodes})

    def wait(self, grid: Grid, needed: int, timeout: float | None) -> tuple[dict[str, int], dict[str, str]]:
        """As :meth:`refresh`, once enough nodes are online.

        Raises
        ------
        TimeoutError
            They are not after ``timeout`` seconds. ``None`` waits for ever, as Flower does.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while len(online := list(grid.get_node_ids())) < needed:
            if deadline is not None and monotonic() > deadline:
                raise TimeoutError(
                    f"expected at least {needed} nodes online, found {len(online)} after {timeout:g} s; "
                    "start more SuperNodes, or lower min_train_nodes, min_evaluate_nodes and min_available_nodes"
                )
            _log.info("Waiting for nodes to connect: %d connected (minimum required: %d).", len(online), needed)
            sleep(1)
        nodes, twins = self.refresh(grid)
        while not self.keys.keys() >= set(grid.get_node_ids()):
            # A simulation's nodes come up while it starts, but all of them before the first one answers, so that round
            # 1 draws from all.
            nodes, twins = self.refresh(grid)
        return nodes, twins

    def dialect(self, node_id: int) -> Dialect | None:
        """Which records the client's app understands, as far as it has shown."""
        return self._dialects.get(node_id)

    def learn(self, replies: Iterable[Message]) -> None:
        """Note from replies which records their senders understand."""
        for reply in replies:
            if reply.has_content():
                kind: Dialect = "numpy" if is_numpy_reply(reply.content) else "message"
                self._dialects[reply.metadata.src_node_id] = kind

    def _ask(self, grid: Grid, node_ids: list[int]) -> dict[int, str]:
        """The labels that the nodes' apps give themselves; nodes that give none are absent."""
        if not node_ids:
            return {}
        messages = [Message(RecordDict(), node_id, MessageType.QUERY) for node_id in node_ids]
        replies = [
            reply
            for reply in grid.send_and_receive(messages, timeout=_QUERY_TIMEOUT)
            if reply.metadata.src_node_id in node_ids
        ]
        self.learn(replies)
        for reply in replies:
            reason = (reply.error.reason or "") if reply.has_error() else ""
            for text, dialect in _REFUSALS.items():
                if text in reason:
                    self._dialects[reply.metadata.src_node_id] = dialect  # type: ignore[assignment]
        labels = {reply.metadata.src_node_id: label_of(reply) for reply in replies}
        return {node_id: label for node_id, label in labels.items() if label is not None}


def client_seed(seed: int, server_round: int, key: str) -> int:
    """A seed for one client in one round, the same on every machine; 0 to 2**63 − 1."""
    digest = sha256(f"{seed}/{server_round}/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _unique(keys: dict[int, str]) -> tuple[dict[str, int], dict[str, str]]:
    count = Counter(keys.values())
    twins = {
        key: f"expected one node online under this key, found {number}; give every client its own client-id"
        for key, number in count.items()
        if number > 1
    }
    return {key: node_id for node_id, key in keys.items() if key not in twins}, twins
