"""What a client keeps from round to round under methods with client memory, and where.

A change of the memory is pending until the server says, with its next message, that it accepted the reply that the
change belongs to. A lost reply so unbalances nothing: the server's sums and the clients' memories move together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from ..core.arrays import Arrays
from ..core.files import read_arrays, write_arrays
from ..core.local_rule import ClientMemory

_PREFIX = "fedcome"
_ROUNDS = ("epoch", "accepted_round", "pending_round")


@dataclass(frozen=True, eq=False)
class StoredMemory:
    """A client's memory as the server has accepted it, and a change that waits for the server's word.

    Attributes
    ----------
    epoch
        The server's count of restarts at 0 that the memory belongs to.
    accepted_round, accepted
        The round of the last reply that the server accepted, 0 before the first, and the memory after it.
    pending_round, pending
        The round of a reply of which the client does not know, 0 for none, and the memory if it was accepted.
    """

    epoch: int = 0
    accepted_round: int = 0
    accepted: ClientMemory = field(default_factory=ClientMemory)
    pending_round: int = 0
    pending: ClientMemory = field(default_factory=ClientMemory)

    def confirmed(self, epoch: int, accepted_round: int) -> "StoredMemory | None":
        """The memory that the server counts on, without anything pending; ``None`` when the client does not have it.

        Where the server has accepted nothing of this client in this epoch, it counts on a fresh memory.
        """
        if accepted_round == 0:
            return StoredMemory(epoch)
        if epoch == self.epoch and accepted_round == self.pending_round:
            return StoredMemory(epoch, accepted_round, self.pending)
        if epoch == self.epoch and accepted_round == self.accepted_round:
            return StoredMemory(epoch, accepted_round, self.accepted)
        return None

    def round_in(self, epoch: int) -> int:
        """The accepted round as of the given epoch, 0 for a memory of another one."""
        return self.accepted_round if epoch == self.epoch else 0


class MemoryStore(Protocol):
    """Where a client's memory is kept."""

    def load(self) -> StoredMemory:
        """The stored memory, a fresh one if there is none."""

    def save(self, memory: StoredMemory) -> None:
        """Store the memory in place of the one before."""


@dataclass(frozen=True, eq=False)
class ContextStore:
    """The memory in Flower's ``context.state``: it lives as long as the node in its run."""

    state: RecordDict

    def load(self) -> StoredMemory:
        """The memory of this run."""
        parts = {
            name.removeprefix(f"{_PREFIX}."): to_numpy(record)
            for name, record in self.state.array_records.items()
            if name.startswith(f"{_PREFIX}.")
        }
        return _from_parts(self.state.config_records.get(_PREFIX, {}), parts)

    def save(self, memory: StoredMemory) -> None:
        """Put the memory into the state, which Flower keeps."""
        self.state[_PREFIX] = ConfigRecord({name: getattr(memory, name) for name in _ROUNDS})
        for name, arrays in _to_parts(memory).items():
            self.state[f"{_PREFIX}.{name}"] = ArrayRecord({key: Array(np.asarray(a)) for key, a in arrays.items()})


@dataclass(frozen=True)
class FileStore:
    """The memory in one file of a folder, by client id: it survives restarts, and is written atomically."""

    folder: Path
    client_id: str

    def load(self) -> StoredMemory:
        """The memory of the last run, or of this one.

        Raises
        ------
        DamagedFileError
            The file is not what was written.
        """
        try:
            saved = read_arrays(self._path)
        except FileNotFoundError:
            return StoredMemory()
        rounds = dict(zip(_ROUNDS, saved.pop("rounds").tolist(), strict=True))
        parts: dict[str, dict[str, NDArray[np.generic]]] = {}
        for name, array in saved.items():
            part, _, key = name.partition("/")
            parts.setdefault(part, {})[key] = array
        return _from_parts(rounds, parts)

    def save(self, memory: StoredMemory) -> None:
        """Write the file."""
        arrays: dict[str, NDArray[np.generic]] = {"rounds": np.array([getattr(memory, name) for name in _ROUNDS])}
        for part, values in _to_parts(memory).items():
            arrays |= {f"{part}/{key}": array for key, array in values.items()}
        write_arrays(self._path, arrays)

    @property
    def _path(self) -> Path:
        return self.folder / f"{quote(self.client_id, safe='')}.npz"


def _to_parts(memory: StoredMemory) -> dict[str, Arrays]:
    return {
        "accepted-drift": memory.accepted.drift,
        "accepted-control": memory.accepted.control,
        "pending-drift": memory.pending.drift,
        "pending-control": memory.pending.control,
    }


def _from_parts(rounds: Mapping[str, object], parts: Mapping[str, Arrays]) -> StoredMemory:
    epoch, accepted_round, pending_round = (int(str(rounds.get(name, 0))) for name in _ROUNDS)
    return StoredMemory(
        epoch,
        accepted_round,
        ClientMemory(parts.get("accepted-drift", {}), parts.get("accepted-control", {})),
        pending_round,
        ClientMemory(parts.get("pending-drift", {}), parts.get("pending-control", {})),
    )


def to_numpy(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """A record's arrays by name."""
    return {name: array.numpy() for name, array in record.items()}
