"""Values as named arrays and back, for files that hold arrays only and no pickled objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack_texts(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as their bytes in UTF-8, one after the other, and the number of bytes of each.

    Unlike NumPy's string arrays this costs no more than the strings do where one of them is long, and keeps zeros at
    their ends.
    """
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), np.array([len(text) for text in encoded], dtype=np.int64)


def unpack_texts(data: NDArray[np.uint8], lengths: NDArray[np.int64], what: str) -> list[str]:
    """The strings that :func:`pack_texts` wrote.

    Raises
    ------
    ValueError
        The lengths do not fit the bytes, or these are no UTF-8; the text begins with ``what``.
    """
    if np.any(lengths < 0) or lengths.sum() != len(data):
        raise ValueError(f"{what}: expected lengths of strings that add up to {len(data)}, found {lengths.sum()}")
    ends, text = np.cumsum(lengths).tolist(), data.tobytes()
    try:
        return [text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}: expected strings in UTF-8, found other bytes: {error}") from error


def like_arrays(
    arrays: Mapping[str, NDArray[Any]], examples: Mapping[str, NDArray[Any]], what: str
) -> dict[str, NDArray[Any]]:
    """The arrays named in ``examples``, each of its example's type and number of dimensions.

    Raises
    ------
    ValueError
        One is missing or is of another kind; the text begins with ``what``.
    """
    missing = [name for name in examples if name not in arrays]
    if missing:
        raise ValueError(f"{what}: expected the arrays {', '.join(examples)}; missing {', '.join(missing)}")
    found = {name: np.asarray(arrays[name]) for name in examples}
    for name, example in examples.items():
        if (found[name].dtype, found[name].ndim) != (example.dtype, example.ndim):
            raise ValueError(
                f"{what}, {name}: expected an array of {example.dtype} with {example.ndim} dimensions, "
                f"found {found[name].dtype} with {found[name].ndim}"
            )
    return found
