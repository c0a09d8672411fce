"""The server's state as named arrays, for files that hold arrays only, and back."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .past_updates import PastUpdate
from .server_memory import MemorySums
from .similarity import SimilarityTable
from .state import ServerState

_TABLE, _DRIFT, _CONTROL, _PAST, _NUMBERS = "table", "drift", "control", "past", "numbers"

Named = Mapping[str, NDArray[Any]]


def state_to_arrays(state: ServerState) -> dict[str, NDArray[Any]]:
    """All of the state: numbers as JSON in UTF-8, everything else as it is. Equal states give equal arrays."""
    past = sorted(state.past)
    numbers = {
        "round": state.round,
        "server_step": state.server_step,
        "last_losses": dict(state.last_losses),
        "last_reporters": sorted(state.last_reporters),
        "times_chosen": dict(state.times_chosen),
        "memory_epoch": state.memory.epoch,
        "accepted": dict(state.memory.accepted),
        "restarted_by": sorted(state.memory.restarted_by),
        "past": {key: state.past[key].round for key in past},
    }
    arrays: dict[str, NDArray[Any]] = {_NUMBERS: text_to_array(json.dumps(numbers, sort_keys=True))}
    arrays |= _under(_TABLE, state.table.to_arrays())
    arrays |= _under(_DRIFT, state.memory.drift)
    arrays |= _under(_CONTROL, state.memory.control)
    for place, key in enumerate(past):  # by place, since a key may hold any character
        arrays |= _under(f"{_PAST}/{place}", state.past[key].arrays)
    return arrays


def state_from_arrays(arrays: Named) -> ServerState:
    """The state that :func:`state_to_arrays` wrote.

    Raises
    ------
    ValueError
        Something is missing or is of another kind; the text says what.
    """
    if _NUMBERS not in arrays:
        raise ValueError(f"server state: expected an array {_NUMBERS!r}, found {sorted(arrays)[:5] or 'none'}")
    numbers = json.loads(array_to_text(arrays[_NUMBERS]))
    try:
        return ServerState(
            round=int(numbers["round"]),
            table=SimilarityTable.from_arrays(dict(_of(arrays, _TABLE))),
            server_step=float(numbers["server_step"]),
            last_losses={key: float(loss) for key, loss in numbers["last_losses"].items()},
            last_reporters=frozenset(numbers["last_reporters"]),
            times_chosen={key: int(times) for key, times in numbers["times_chosen"].items()},
            memory=MemorySums(
                int(numbers["memory_epoch"]),
                dict(_of(arrays, _DRIFT)),
                dict(_of(arrays, _CONTROL)),
                {key: int(value) for key, value in numbers["accepted"].items()},
                frozenset(numbers["restarted_by"]),
            ),
            past={
                key: PastUpdate(int(number), dict(_of(arrays, f"{_PAST}/{place}")))
                for place, (key, number) in enumerate(sorted(numbers["past"].items()))
            },
        )
    except KeyError as error:
        raise ValueError(f"server state: expected {error} among its numbers, found {sorted(numbers)}") from error


def text_to_array(text: str) -> NDArray[np.uint8]:
    """A text as its bytes in UTF-8."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def array_to_text(array: NDArray[Any]) -> str:
    """The text that :func:`text_to_array` was given."""
    return array.astype(np.uint8).tobytes().decode()


def _under(folder: str, arrays: Named) -> dict[str, NDArray[Any]]:
    return {f"{folder}/{name}": array for name, array in arrays.items()}


def _of(arrays: Named, folder: str) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, array in arrays.items():
        if name.startswith(f"{folder}/"):
            yield name.removeprefix(f"{folder}/"), array
