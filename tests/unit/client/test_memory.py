"""What a client remembers: pending until the server confirms it, in Flower's state or in a file."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from flwr.app import RecordDict

from fedcome_flwr.client.memory import ContextStore, FileStore, StoredMemory
from fedcome_flwr.core import ClientMemory
from fedcome_flwr.core.files import DamagedFileError


def memory(value: float) -> ClientMemory:
    return ClientMemory({"a/w": np.full(3, value, np.float32)}, {"b": np.array(value)})


STORED = StoredMemory(1, 4, memory(4.0), 6, memory(6.0))


def values(found: ClientMemory) -> list[float]:
    return [float(np.asarray(array).flat[0]) for part in (found.drift, found.control) for array in part.values()]


@pytest.mark.parametrize(
    ("epoch", "accepted_round", "expected"),
    [
        (1, 6, [6.0, 6.0]),  # the reply arrived
        (1, 4, [4.0, 4.0]),  # it was lost
        (1, 0, []),  # the server has counted nothing of this client
        (2, 0, []),  # all memories were set back
        (0, 0, []),
    ],
)
def test_the_server_says_which_memory_counts(epoch, accepted_round, expected):
    found = STORED.confirmed(epoch, accepted_round)
    assert found is not None
    assert (found.epoch, found.accepted_round, found.pending_round) == (epoch, accepted_round, 0)
    assert values(found.accepted) == expected


@pytest.mark.parametrize(("epoch", "accepted_round"), [(1, 3), (1, 5), (1, 9), (2, 4), (2, 6), (0, 6)])
def test_a_memory_that_the_client_does_not_have(epoch, accepted_round):
    assert STORED.confirmed(epoch, accepted_round) is None


def test_the_round_of_another_epochs_memory_is_none():
    assert STORED.round_in(1) == 4
    assert STORED.round_in(2) == 0


@pytest.fixture(params=["state", "file"])
def store(request, tmp_path):
    return ContextStore(RecordDict()) if request.param == "state" else FileStore(tmp_path / "new", "hospital/1: ä")


def test_a_store_is_empty_at_first_and_then_gives_what_was_saved(store):
    assert store.load().accepted_round == 0
    for saved in (STORED, StoredMemory(2, 7, memory(7.0), 8, ClientMemory()), StoredMemory(3)):
        store.save(saved)
        found = store.load()
        for name in ("epoch", "accepted_round", "pending_round"):
            assert getattr(found, name) == getattr(saved, name)
        assert values(found.accepted) == values(saved.accepted)
        assert values(found.pending) == values(saved.pending)
        for part, expected in (
            (found.accepted.drift, saved.accepted.drift),
            (found.pending.control, saved.pending.control),
        ):
            assert {k: (v.dtype, v.shape) for k, v in part.items()} == {
                k: (v.dtype, v.shape) for k, v in expected.items()
            }


def test_a_file_stays_in_its_folder_and_belongs_to_one_client(tmp_path):
    for name in ("../outside", "a/b", "a b", "a", ".", "con"):
        FileStore(tmp_path / "state", name).save(StoredMemory(0, len(name)))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert len(list((tmp_path / "state").iterdir())) == 6
    assert FileStore(tmp_path / "state", "a b").load().accepted_round == 3


def test_a_damaged_file_is_named(tmp_path):
    store = FileStore(tmp_path, "a")
    store.save(STORED)
    path = tmp_path / "a.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DamagedFileError, match=r"a\.npz"):
        store.load()
