"""One file that holds all of a run: the model, everything that the server remembers, and the settings it ran with."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Arrays
from ..core.checks import check_at_least
from ..core.files import DamagedFileError, read_arrays, write_arrays
from ..core.methods import Method
from ..core.saved_state import array_to_text, state_from_arrays, state_to_arrays, text_to_array
from ..core.selection import Selector
from ..core.state import ServerState

_log = getLogger("flwr")

_FORMAT = 1
_MODEL, _STATE, _ABOUT = "model", "state", "about"

Settings = Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The model after a round, the server's state, and the settings, each as text."""

    arrays: Arrays
    state: ServerState
    settings: Settings


class CheckpointFile:
    """Where a run's checkpoints go, how often, and from which one it goes on.

    Parameters
    ----------
    path, every, keep, resume
        As ``checkpoint``, ``checkpoint_every``, ``checkpoint_keep`` and ``resume`` of
        :class:`~fedcome_flwr.UpdateStrategy`.
    """

    def __init__(self, path: str | Path | None, *, every: int, keep: int, resume: bool | str | Path) -> None:
        check_at_least("checkpoint_every", every, 1)
        check_at_least("checkpoint_keep", keep, 1)
        if resume is True and path is None:
            raise ValueError("resume: expected a checkpoint to go on from, found none: give checkpoint=path")
        self.path = None if path is None else Path(path)
        self.every = every
        self.keep = keep
        self.resume = resume
        self.saved_round: int | None = None

    def take_resume(self) -> Path | None:
        """The file to go on from, once: a second call of ``start`` goes on from the first."""
        resume, self.resume = self.resume, False
        if resume is True:
            return self.path if self.path is not None and self.path.exists() else None
        return None if resume is False else Path(resume)

    def save(self, checkpoint: Checkpoint, *, final: bool = False) -> None:
        """Write it, if its round is one of those to be written, or the last, and it is not there already."""
        done = checkpoint.state.round
        if self.path is None or done in (0, self.saved_round) or (done % self.every and not final):
            return
        save_checkpoint(self.path, checkpoint, keep=self.keep)
        self.saved_round = done


class CheckpointError(ValueError):
    """A checkpoint that does not fit the run; the text names the differences."""


def settings_of(method: Method, selector: Selector, seed: int) -> dict[str, str]:
    """What two runs must share, so that one may go on where the other stopped."""
    parts = {f"method.{field.name}": repr(getattr(method, field.name)) for field in fields(method)}
    return {**parts, "selector": repr(selector), "seed": repr(seed)}


def save_checkpoint(path: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write the file atomically; the ones before it stay beside it as ``path.1``, ``path.2``, …, ``keep`` in all.

    A crash at any instant leaves a complete file under ``path``, the old one or the new one.
    """
    arrays: dict[str, NDArray[Any]] = {
        _ABOUT: text_to_array(json.dumps({"format": _FORMAT, "settings": dict(checkpoint.settings)}, sort_keys=True))
    }
    arrays |= {f"{_MODEL}/{name}": np.asarray(array) for name, array in checkpoint.arrays.items()}
    arrays |= {f"{_STATE}/{name}": array for name, array in state_to_arrays(checkpoint.state).items()}
    for number in range(keep - 1, 1, -1):
        if (older := _numbered(path, number - 1)).exists():
            older.replace(_numbered(path, number))
    if keep > 1 and path.exists():
        _copy(path, _numbered(path, 1))
    write_arrays(path, arrays)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; where the file is damaged, the one before it, which is said in the log.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    DamagedFileError
        Neither the file nor one before it can be read.
    """
    candidates = [path, *sorted(path.parent.glob(f"{path.name}.[0-9]*"), key=lambda file: int(file.suffix[1:]))]
    damaged: list[str] = []
    for candidate in candidates:
        try:
            checkpoint = _read(candidate)
        except FileNotFoundError:
            if candidate == path and len(candidates) == 1:
                raise
            continue
        except DamagedFileError as error:
            damaged.append(str(error))
            continue
        for text in damaged:
            _log.warning("fedcome: %s; going on from %s, round %d", text, candidate, checkpoint.state.round)
        return checkpoint
    raise DamagedFileError("; ".join(damaged))


def check_settings(found: Settings, expected: Settings, path: Path) -> None:
    """Refuse a checkpoint of a run with other settings.

    Raises
    ------
    CheckpointError
        The text names each setting that differs, with both values.
    """
    differences = [
        f"{name} is {found.get(name, 'not there')} in the file and {expected.get(name, 'not there')} here"
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    ]
    if differences:
        raise CheckpointError(f"{path}: expected a checkpoint of the same settings, found: {'; '.join(differences)}")


def check_model(found: Arrays, expected: Arrays, path: Path) -> None:
    """Refuse a checkpoint of another model.

    Raises
    ------
    CheckpointError
        The text names the first array that differs.
    """
    if list(found) != list(expected):
        missing = [name for name in expected if name not in found]
        extra = [name for name in found if name not in expected]
        difference = f"missing {missing[:5]}, unexpected {extra[:5]}" if missing or extra else "another order"
        raise CheckpointError(f"{path}: expected the {len(expected)} arrays of this model, found {difference}")
    for name, array in expected.items():
        if (found[name].shape, found[name].dtype) != (array.shape, array.dtype):
            raise CheckpointError(
                f"{path}: array {name!r}: expected shape {array.shape} of {array.dtype}, found {found[name].shape} "
                f"of {found[name].dtype}"
            )


def _read(path: Path) -> Checkpoint:
    arrays = read_arrays(path)
    try:
        about = json.loads(array_to_text(arrays[_ABOUT]))
        if about["format"] != _FORMAT:
            raise CheckpointError(f"{path}: expected a checkpoint of format {_FORMAT}, found {about['format']!r}")
        return Checkpoint(_part(arrays, _MODEL), state_from_arrays(_part(arrays, _STATE)), about["settings"])
    except CheckpointError:
        raise
    except (KeyError, ValueError) as error:
        raise DamagedFileError(f"{path}: expected a checkpoint, found arrays of another kind: {error}") from error


def _part(arrays: Arrays, folder: str) -> dict[str, NDArray[Any]]:
    prefix = f"{folder}/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _copy(path: Path, to: Path) -> None:
    """A second name for the file, or a copy of it where the file system has no second names."""
    part = to.with_name(f".{to.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
    except OSError:
        shutil.copy2(path, part)
    part.replace(to)
