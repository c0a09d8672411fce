import os

import numpy as np
import pytest

from fedcome_flwr.core import files
from fedcome_flwr.core.files import DamagedFileError, read_arrays, write_arrays

ARRAYS = {
    "layer/0.weight": np.arange(600, dtype=np.float32).reshape(20, 30),
    "file": np.array(3),  # the name of an argument of NumPy's
    "mask": np.array([True, False]),
    "names": np.array(["a", "äß"]),
    "empty": np.zeros((0, 4)),
}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new folder" / "state.npz"
    write_arrays(path, ARRAYS)
    found = read_arrays(path)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_equal_arrays_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        write_arrays(tmp_path / name, ARRAYS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nothing_is_pickled(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle"):
        write_arrays(tmp_path / "a", {"object": np.array([{}])})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["savez", "fsync"])
def test_a_failure_on_the_way_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, step):
    path = tmp_path / "state.npz"
    write_arrays(path, ARRAYS)
    before = path.read_bytes()

    def fail(*args, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(np if step == "savez" else os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_arrays(path, {"other": np.zeros(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_bytes_are_on_the_disk_before_they_take_the_name(tmp_path, monkeypatch):
    order = []
    real_sync, real_replace = os.fsync, files.Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("sync") or real_sync(descriptor))
    monkeypatch.setattr(files.Path, "replace", lambda self, to: order.append("rename") or real_replace(self, to))
    write_arrays(tmp_path / "a", ARRAYS)
    assert order == ["sync", "rename", "sync"]  # the file; its name; the folder


def test_a_cut_file_is_found_at_every_length(tmp_path):
    path = tmp_path / "state.npz"
    write_arrays(path, ARRAYS)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError, match=r"state\.npz: expected arrays as they were saved"):
            read_arrays(path)


def test_an_altered_value_is_found(tmp_path):
    path = tmp_path / "state.npz"
    write_arrays(path, ARRAYS)
    whole = bytearray(path.read_bytes())
    place = whole.index(np.float32(299).tobytes())
    whole[place] ^= 1
    path.write_bytes(bytes(whole))
    with pytest.raises(DamagedFileError, match="CRC"):
        read_arrays(path)


def test_another_kind_of_file(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DamagedFileError, match="a single array"):
        read_arrays(tmp_path / "one.npy")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(DamagedFileError):
        read_arrays(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none")
