"""Arrays in NumPy's own format, read where they lie."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray


def view_npy(data: bytes) -> NDArray[np.generic]:
    """The array that ``data`` holds in NumPy's format, as a read-only view of these bytes.

    ``numpy.load`` would copy them, and parse the header, a Python literal, each time: an array's header is the same
    in the replies of all clients.

    Raises
    ------
    ValueError
        It is another format, bytes are missing, or the array holds Python objects.
    """
    version = npy.read_magic(BytesIO(data[: npy.MAGIC_LEN]))
    if version not in _HEADERS:  # 3.0 is for structured types
        raise ValueError(f"expected version 1.0 or 2.0 of the format, found {version[0]}.{version[1]}")
    start = npy.MAGIC_LEN + _HEADERS[version][1]
    end = start + int.from_bytes(data[npy.MAGIC_LEN : start], "little")
    shape, fortran_order, dtype = _header(data[:end])
    values = np.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=end)
    return values.reshape(shape, order="F" if fortran_order else "C")


@lru_cache(maxsize=4096)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = BytesIO(data)
    shape, fortran_order, dtype = _HEADERS[npy.read_magic(stream)][0](stream)
    if dtype.hasobject:
        raise ValueError("expected numbers, found Python objects")
    return shape, fortran_order, dtype


_Reader = Callable[[BytesIO], tuple[tuple[int, ...], bool, np.dtype[Any]]]
_HEADERS: Mapping[tuple[int, int], tuple[_Reader, int]] = {  # how to read it, and the bytes of its length
    (1, 0): (npy.read_array_header_1_0, 2),
    (2, 0): (npy.read_array_header_2_0, 4),
}
