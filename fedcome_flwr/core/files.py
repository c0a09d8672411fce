"""Arrays in one file: written as a whole or not at all, checked when read, never pickled."""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays


class DamagedFileError(ValueError):
    """A file that is cut off, altered, or of another kind; the text names it and says what was found."""


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays to a file in NumPy's npz format, in place of the file that was there.

    A crash at any instant leaves the old file or the new one: the arrays go to a file beside it, reach the disk, and
    only then take its name. Equal arrays give equal bytes. Folders are made as needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False) as file:
        try:
            np.savez(file, allow_pickle=False, **{f"_{name}": array for name, array in arrays.items()})
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(file.name)
            raise
    _sync_folder(path.parent)


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays of a file of :func:`write_arrays`, in their order; every byte passes its checksum (CRC-32).

    Raises
    ------
    FileNotFoundError
        There is no such file.
    DamagedFileError
        The file is not what was written.
    """
    try:
        with path.open("rb") as file:  # NumPy leaves the file open when it finds no arrays in it
            opened = np.load(file, allow_pickle=False)
            if not isinstance(opened, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {name.removeprefix("_"): opened[name] for name in opened.files}
    except (BadZipFile, ValueError, EOFError, KeyError, OSError, NotImplementedError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        raise DamagedFileError(f"{path}: expected arrays as they were saved, found a damaged file: {error}") from error


def _sync_folder(folder: Path) -> None:
    """Let the new name reach the disk, too, where folders can be opened (not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
