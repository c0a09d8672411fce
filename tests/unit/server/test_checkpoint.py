"""Checkpoints: written, found damaged, refused, and gone on from."""

import logging
import os

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedcome_flwr import (
    ConsensusSelection,
    FedCOMEStrategy,
    UniformSelection,
    UpdateStrategy,
    fedavg,
    fedcome,
    feddc,
    feddyn,
    scaffold,
)
from fedcome_flwr.core.files import DamagedFileError
from fedcome_flwr.server.checkpoint import CheckpointError, load_checkpoint
from fedcome_flwr.simulation import InlineGrid
from tests.unit.server._federation import bytes_of, federation, initial
from tests.unit.server._methods import each_method, remembering


def start(strategy, rounds, arrays=None, app=None, nodes=6, **options):
    with InlineGrid(app or remembering()[0], nodes, debug=True) as grid:
        return strategy.start(grid=grid, initial_arrays=arrays or initial(), num_rounds=rounds, **options)


def build(method=None, **options):
    return UpdateStrategy(method=method or fedcome(), selector=ConsensusSelection(), fraction_train=0.5, **options)


@each_method
def test_two_and_two_rounds_are_four(method, tmp_path):
    path = tmp_path / "run.npz"
    whole = start(build(method), 4)
    start(build(method, checkpoint=path), 2)
    again = build(method, checkpoint=path)
    arrays = again.restore(path)
    assert again.state.round == 2
    rest = start(again, 2, arrays)
    assert bytes_of(rest.arrays) == bytes_of(whole.arrays)
    assert again.state.round == load_checkpoint(path).state.round == 4
    np.testing.assert_equal(
        rest.train_metrics_clientapp[2]["train-loss"], whole.train_metrics_clientapp[4]["train-loss"]
    )


def test_resume_counts_all_rounds_and_needs_no_second_line(tmp_path):
    path = tmp_path / "run.npz"
    whole = start(build(), 5)
    first = build(checkpoint=path, resume=True)  # no file yet: a beginning like any other
    start(first, 2)
    second = build(checkpoint=path, resume=True)
    result = start(second, 5)
    assert bytes_of(result.arrays) == bytes_of(whole.arrays)
    assert len(result.train_metrics_clientapp) == 3
    done = build(checkpoint=path, resume=True)
    assert bytes_of(start(done, 5).arrays) == bytes_of(whole.arrays)
    assert done.state.round == 5


def test_absolute_rounds_go_on(tmp_path):
    path, seen, evaluated = tmp_path / "run.npz", [], []
    app, asked = remembering()
    start(build(checkpoint=path), 2)
    strategy = build(resume=path, on_round=lambda report: seen.append(report.round) or None)
    start(strategy, 4, app=app, evaluate_fn=lambda number, arrays: evaluated.append(number))
    assert seen == [3, 4]
    assert evaluated == [2, 3, 4]
    assert {config["server-round"] for config, _ in asked} == {3, 4}


def test_every_nth_round_and_the_last_are_written(tmp_path):
    path, written = tmp_path / "run.npz", []

    def note(report):
        written.append(load_checkpoint(path).state.round if path.exists() else None)

    start(build(checkpoint=path, checkpoint_every=3, on_round=note), 7)
    assert written == [None, None, 3, 3, 3, 6, 6]
    assert load_checkpoint(path).state.round == 7


def test_the_last_ones_are_kept(tmp_path):
    path = tmp_path / "run.npz"
    start(build(checkpoint=path, checkpoint_keep=3), 5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.1", "run.npz.2"]
    assert [load_checkpoint(file).state.round for file in sorted(tmp_path.iterdir())] == [5, 4, 3]


def test_one_file_is_enough_for_those_who_want_one(tmp_path):
    start(build(checkpoint=tmp_path / "run.npz", checkpoint_keep=1), 3)
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


def test_without_second_names_a_copy_is_kept(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    start(build(checkpoint=tmp_path / "run.npz"), 3)
    assert load_checkpoint(tmp_path / "run.npz.1").state.round == 2


@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "other"])
def test_a_damaged_file_is_named_and_the_one_before_it_used(tmp_path, damage, caplog):
    path = tmp_path / "run.npz"
    whole = start(build(checkpoint=path), 3)
    content = path.read_bytes()
    spoilt = {
        "cut": content[: len(content) // 2],
        "altered": content[:200] + bytes([content[200] ^ 255]) + content[201:],
        "empty": b"",
        "other": b"hello",
    }
    path.unlink()
    path.write_bytes(spoilt[damage])
    again = build(checkpoint=path)
    with caplog.at_level(logging.WARNING, "flwr"):
        arrays = again.restore(path)
    assert "run.npz: expected" in caplog.text
    assert "run.npz.1, round 2" in caplog.text
    assert bytes_of(start(again, 1, arrays).arrays) == bytes_of(whole.arrays)


def test_nothing_left_to_go_on_from(tmp_path):
    with pytest.raises(FileNotFoundError):
        build().restore(tmp_path / "none.npz")
    (tmp_path / "run.npz").write_bytes(b"hello")
    (tmp_path / "run.npz.1").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"run\.npz: expected.*; .*run\.npz\.1: expected"):
        build().restore(tmp_path / "run.npz")


def test_arrays_of_another_kind_are_no_checkpoint(tmp_path):
    np.savez(tmp_path / "run.npz", w=np.zeros(3))
    with pytest.raises(DamagedFileError, match="expected a checkpoint, found arrays of another kind"):
        build().restore(tmp_path / "run.npz")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            UpdateStrategy(method=fedavg(), selector=ConsensusSelection()),
            "method.name is 'fedcome' in the file and 'fed",
        ),
        (FedCOMEStrategy(seed=3), "seed is 0 in the file and 3 here"),
        (FedCOMEStrategy(method=fedcome(influence_limit=0.3)), "influence_limit=None.*influence_limit=0.3"),
        (FedCOMEStrategy(method=fedcome(server_step=1.0)), "method.server_step is 'adaptive' in the file and 1.0 here"),
        (FedCOMEStrategy(selector=UniformSelection()), "selector is ConsensusSelection.* and UniformSelection"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, other, text):
    path = tmp_path / "run.npz"
    start(build(checkpoint=path), 1)
    with pytest.raises(CheckpointError, match=text):
        other.restore(path)
    assert other.state.round == 0


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"w": np.zeros(7, np.float32), "seen": np.array(0)}, r"array 'w': expected shape \(7,\) of float32, found"),
        ({"w": np.zeros(6), "seen": np.array(0)}, r"array 'w': expected shape \(6,\) of float64, found"),
        ({"v": np.zeros(6, np.float32), "seen": np.array(0)}, r"missing \['v'\], unexpected \['w'\]"),
        ({"seen": np.array(0), "w": np.zeros(6, np.float32)}, "found another order"),
    ],
)
def test_another_model_is_refused(tmp_path, arrays, text):
    path = tmp_path / "run.npz"
    start(build(checkpoint=path), 1)
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    with pytest.raises(CheckpointError, match=text):
        start(build(resume=path), 2, record)


@pytest.mark.parametrize("method", [scaffold(), feddyn(0.1), feddc(0.1)], ids=lambda method: method.name)
def test_methods_with_client_memory_write_every_round(method, tmp_path):
    with pytest.raises(ValueError, match=f"checkpoint_every: expected 1 for {method.name}, found 2"):
        build(method, checkpoint=tmp_path / "a", checkpoint_every=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint_every": 0}, "checkpoint_every: expected at least 1"),
        ({"checkpoint_keep": 0}, "checkpoint_keep: expected at least 1"),
        ({"resume": True}, "resume: expected a checkpoint to go on from"),
        ({"patience": 0}, "patience: expected at least 1"),
    ],
)
def test_bad_settings(options, text):
    with pytest.raises(ValueError, match=text):
        UpdateStrategy(**options)


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start(UpdateStrategy(), 2, app=federation())
    assert list(tmp_path.iterdir()) == []
