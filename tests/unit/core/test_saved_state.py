import numpy as np
import pytest

from fedcome_flwr.core import ServerState, SimilarityTable
from fedcome_flwr.core.past_updates import PastUpdate
from fedcome_flwr.core.saved_state import state_from_arrays, state_to_arrays
from fedcome_flwr.core.server_memory import MemorySums

STATE = ServerState(
    round=7,
    table=SimilarityTable().observed(["a/1", "b"], np.array([[1.0, -0.3], [-0.3, 2.0]]), 0.5),
    server_step=0.1 + 0.2,
    last_losses={"b": 1 / 3, "a/1": 1e-300},
    last_reporters=frozenset({"b"}),
    times_chosen={"a/1": 3, "ä\n": 2},
    memory=MemorySums(
        2, {"w/0": np.array([[1.5]])}, {"w/0": np.array([[2.5]]), "b": np.array(0.5)}, {"b": 6}, frozenset("xy")
    ),
    past={"z/9": PastUpdate(5, {"w/0": np.array([[1]], np.float16)}), "a": PastUpdate(6, {"w/0": np.ones((1, 1))})},
)


def test_all_of_a_state_comes_back():
    found = state_from_arrays(state_to_arrays(STATE))
    for name in ("round", "server_step", "last_losses", "last_reporters", "times_chosen"):
        assert getattr(found, name) == getattr(STATE, name)
    assert found.table.to_arrays().keys() == STATE.table.to_arrays().keys()
    for name, array in STATE.table.to_arrays().items():
        np.testing.assert_array_equal(found.table.to_arrays()[name], array)
    assert (found.memory.epoch, found.memory.accepted, found.memory.restarted_by) == (2, {"b": 6}, {"x", "y"})
    for part in ("drift", "control"):
        assert list(getattr(found.memory, part)) == list(getattr(STATE.memory, part))
        for name, array in getattr(STATE.memory, part).items():
            np.testing.assert_array_equal(getattr(found.memory, part)[name], array)
    assert {key: item.round for key, item in found.past.items()} == {"a": 6, "z/9": 5}
    assert found.past["z/9"].arrays["w/0"].dtype == np.float16


def test_a_state_has_no_field_that_is_not_saved():
    """A field that is added to the state has to be added here and above."""
    assert set(vars(STATE)) == {
        "round",
        "table",
        "server_step",
        "last_losses",
        "last_reporters",
        "times_chosen",
        "memory",
        "past",
    }
    assert set(vars(STATE.memory)) == {"epoch", "drift", "control", "accepted", "restarted_by"}


def test_equal_states_give_equal_arrays_whatever_the_order_of_their_clients():
    other = ServerState(times_chosen={"b": 1, "a": 2}, last_losses={"b": 1.0, "a": 2.0})
    same = ServerState(times_chosen={"a": 2, "b": 1}, last_losses={"a": 2.0, "b": 1.0})
    one, two = state_to_arrays(other), state_to_arrays(same)
    assert {name: array.tobytes() for name, array in one.items()} == {n: a.tobytes() for n, a in two.items()}


def test_what_is_no_state_is_refused():
    with pytest.raises(ValueError, match="server state: expected an array 'numbers'"):
        state_from_arrays({"w": np.zeros(3)})
    arrays = state_to_arrays(STATE)
    arrays["numbers"] = np.frombuffer(b'{"round": 1}', dtype=np.uint8)
    with pytest.raises(ValueError, match="server state: expected 'server_step' among its numbers"):
        state_from_arrays(arrays)
