"""Which key a node gets."""

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedcome_flwr.server.identity import Directory, client_seed
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import federation


class Nodes(InlineGrid):
    """Nodes that are made up; each says ``labels[node_id]`` of itself, or fails to answer."""

    def __init__(self, nodes: list[NodeInfo], labels: dict[int, str] | None = None, reason: str = "no answer"):
        super().__init__(federation(), 1)
        self.nodes, self.labels, self.reason, self.asked = nodes, labels or {}, reason, []

    def get_nodes(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            self.asked.append(node_id)
            if node_id in self.labels:
                content = RecordDict({"client": ConfigRecord({"client-id": self.labels[node_id]})})
                replies.append(Message(content, reply_to=message))
            else:
                replies.append(Message(Error(2, self.reason), reply_to=message))
        return replies


def node(node_id: int, name: str = "", key: bytes = b"", registered_at: str = "") -> NodeInfo:
    return NodeInfo(node_id=node_id, name=name, public_key=key, registered_at=registered_at or f"2026-01-{node_id:02d}")


def keys_of(grid: Nodes, directory: Directory | None = None) -> dict[str, int]:
    with grid:
        return (directory or Directory()).refresh(grid)[0]


def test_a_registered_name_comes_first():
    grid = Nodes([node(1, "hospital-1"), node(2, "hospital-2")], {1: "x", 2: "hospital-1"})
    assert keys_of(grid) == {"hospital-1": 1, "hospital-2": 2}


def test_where_some_have_names_the_others_are_known_by_their_public_keys():
    grid = Nodes([node(1, "hospital-1"), node(2, key=b"k2"), node(3, key=b"k3")], {2: "hospital-1", 3: "me"})
    found = keys_of(grid)
    assert found["hospital-1"] == 1
    assert sorted(key[:4] for key in found) == ["hosp", "key-", "key-"]
    again = keys_of(Nodes([node(7, "hospital-1"), node(9, key=b"k2")]))  # other node ids, the same clients
    assert next(key for key, node_id in again.items() if node_id == 9) == next(k for k, n in found.items() if n == 2)


def test_without_names_clients_name_themselves():
    assert keys_of(Nodes([node(1, key=b"random"), node(2, key=b"too")], {1: "a", 2: "b"})) == {"a": 1, "b": 2}


def test_the_last_resort_is_the_order_of_registration():
    grid = Nodes([node(5, registered_at="2026-01-02"), node(6, registered_at="2026-01-01")])
    assert keys_of(grid) == {"node-00000": 6, "node-00001": 5}


def test_only_new_nodes_are_asked_and_old_keys_stay():
    directory = Directory()
    first = Nodes([node(1), node(2)], {1: "a", 2: "b"})
    keys_of(first, directory)
    second = Nodes([node(1), node(2), node(3)], {1: "changed", 2: "b", 3: "c"})
    assert keys_of(second, directory) == {"a": 1, "b": 2, "c": 3}
    assert second.asked == [3]


def test_two_online_nodes_under_one_key_are_both_left_out_and_a_successor_takes_over():
    directory = Directory()
    grid = Nodes([node(1), node(2), node(3)], {1: "twin", 2: "twin", 3: "c"})
    with grid:
        nodes, twins = directory.refresh(grid)
    assert nodes == {"c": 3}
    assert "found 2" in twins["twin"]
    assert keys_of(Nodes([node(2), node(3)]), directory) == {"twin": 2, "c": 3}


@pytest.mark.parametrize(
    ("reason", "dialect"),
    [
        ("ValueError: No query function registered with name 'default'", "message"),
        ("ValueError: Invalid message type: query", "numpy"),
        ("MemoryError", None),
    ],
)
def test_a_refused_query_tells_which_records_the_app_understands(reason, dialect):
    directory = Directory()
    keys_of(Nodes([node(1)], reason=reason), directory)
    assert directory.dialect(1) == dialect


def test_client_seeds_differ_and_are_the_same_everywhere():
    seeds = {client_seed(s, r, k) for s in range(3) for r in range(3) for k in "abc"}
    assert len(seeds) == 27
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert client_seed(0, 1, "hospital-1") == 497031504739199771
