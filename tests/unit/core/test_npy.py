"""Arrays in NumPy's format, read where they lie."""

from io import BytesIO

import numpy as np
import pytest

from fedcome_flwr.core.npy import view_npy


def stored(array, **options) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(array), **options)
    return stream.getvalue()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("dtype", ["float16", "float32", ">f8", "int64", "bool", "U3"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3)])
def test_an_array_is_read_as_numpy_reads_it(version, dtype, shape):
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    for order in "CF":
        data = stored(np.asarray(array, order=order), version=version)
        found = view_npy(data)
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_the_array_is_a_read_only_view_of_the_bytes():
    data = stored(np.arange(3.0))
    assert np.shares_memory(view_npy(data), np.frombuffer(data, np.uint8))
    assert not view_npy(data).flags.writeable


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "EOF|magic|expected 8 bytes"),
        (b"PK\x03\x04 something else", "magic string"),
        (stored(np.arange(3.0))[:-1], "buffer"),
        (stored(np.arange(3.0))[:20], "EOF|expected|header"),
        (stored(np.array([{}], dtype=object), allow_pickle=True), "found Python objects"),
        (b"\x93NUMPY\x03\x00" + bytes(64), r"expected version 1\.0 or 2\.0 of the format, found 3\.0"),
    ],
)
def test_what_is_no_such_array_is_refused(data, text):
    with pytest.raises(ValueError, match=text):
        view_npy(data)


def test_models_of_one_shape_parse_one_header():
    from fedcome_flwr.core.npy import _header

    _header.cache_clear()
    for seed in range(4):
        view_npy(stored(np.random.default_rng(seed).normal(size=7)))
    assert (_header.cache_info().misses, _header.cache_info().hits) == (1, 3)
