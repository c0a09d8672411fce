"""The quickstart as its users run it: the real app, the real command, on real images."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("datasets", reason="needs the extra data")
pytest.importorskip("sklearn", reason="needs the extra data")

from fedcome_flwr.report import read_rounds
from fedcome_flwr.simulation import run_app

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
PAPER = {"class-assignment": "random", "client-weights": "uniform"}


def run(report: Path | None = None, nodes: int = 10, **config):
    changes = {name.replace("_", "-"): value for name, value in config.items()}
    return run_app(
        QUICKSTART, num_supernodes=nodes, run_config={"report": str(report) if report else ""} | changes, seed=0
    )


def rises(report: Path) -> int:
    """How many times a client found its own loss, weight decay included, above that of the round before."""
    losses = [{key: m["objective"] for key, m in line["client_metrics"].items()} for line in read_rounds(report)]
    return sum(now[key] > before[key] + 1e-6 for before, now in pairwise(losses) for key in now)


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_same_seed_same_bytes(fraction):
    def final(seed: int) -> bytes:
        outcome = run(num_server_rounds=4, fraction_train=fraction, selection="consensus", seed=seed, weight_decay=1e-3)
        return b"".join(array.data for array in outcome.results[0].arrays.values())

    assert final(0) == final(0)
    assert final(0) != final(1)


@pytest.mark.parametrize(
    "config",
    [
        {"strategy": "fedavg"},
        {"strategy": "fedcome", "server_step": "1.0"},
        {"weighting": "consensus-at-mean-norm"},
        {"weighting": "mean-at-consensus-norm"},
        {"partition": "iid"},
        {"partition": "dirichlet", "alpha": 1.0},
        {"batch_size": 0, "local_epochs": 2},
    ],
    ids=str,
)
def test_every_setting_trains(config, tmp_path):
    outcome = run(tmp_path / "run.jsonl", num_server_rounds=3, **config)
    lines = read_rounds(tmp_path / "run.jsonl")
    assert [len(line["clients"]) for line in lines] == [10, 10, 10]
    assert all(line["left_out"] == line["evaluation_left_out"] == {} for line in lines)
    losses = [metrics["train-loss"] for metrics in outcome.results[0].train_metrics_clientapp.values()]
    assert losses[-1] < losses[0]
    assert lines[-1]["server_metrics"]["accuracy"] > 0.15


def test_the_authors_clamp_cuts_every_coordinate():
    def final(**config) -> dict[str, np.ndarray]:
        arrays = run(learning_rate=0.5, **config).results[0].arrays
        return {name: array.numpy() for name, array in arrays.items()}

    before, free = final(num_server_rounds=0), final(num_server_rounds=1)
    once, twice = (final(num_server_rounds=rounds, coordinate_bound=0.005) for rounds in (1, 2))
    for name, start in before.items():
        moved = free[name] - start
        assert np.abs(moved).max() > 0.01
        np.testing.assert_allclose(once[name] - start, np.clip(moved, -0.005, 0.005), atol=1e-7)
        assert np.abs(twice[name] - once[name]).max() == pytest.approx(0.005, rel=1e-4)


def test_small_full_batch_steps_hurt_nobody_on_digits(tmp_path):
    small = PAPER | {"batch-size": 0, "learning-rate": 0.1, "num-server-rounds": 15, "server-step": "1.0"}
    for strategy in ("fedcome", "fedavg"):
        run(tmp_path / f"{strategy}.jsonl", nodes=20, strategy=strategy, **small)
    assert rises(tmp_path / "fedcome.jsonl") == 0
    assert rises(tmp_path / "fedavg.jsonl") > 0


@pytest.mark.parametrize(("dataset", "images"), [("mnist", 100), ("cifar10", 20)])
def test_small_full_batch_steps_hurt_nobody_on_real_images(dataset, images, tmp_path, data_dir):
    small = PAPER | {"batch-size": 0, "learning-rate": 0.01, "num-server-rounds": 4, "images-per-client": images}
    run(tmp_path / "run.jsonl", nodes=20, dataset=str(data_dir / dataset), **small)
    lines = read_rounds(tmp_path / "run.jsonl")
    assert rises(tmp_path / "run.jsonl") == 0
    assert all(line["hurt_by_direction"] == 0 and line["certified"] for line in lines)
    assert sum(line["hurt_by_mean"] for line in lines) > 0  # the plain mean would have hurt somebody


def test_the_command_runs_the_app():
    command = [sys.executable, "-m", "fedcome_flwr", "run", str(QUICKSTART), "--num-supernodes", "4"]
    finished = subprocess.run(
        [*command, "--run-config", "num-server-rounds=2", "--seed", "1"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "round 2 of 2" in finished.stdout
    assert "accuracy" in finished.stdout
    assert "\x1b" not in finished.stdout


def test_the_command_names_an_unknown_setting():
    command = [sys.executable, "-m", "fedcome_flwr", "run", str(QUICKSTART)]
    finished = subprocess.run(
        [*command, "--run-config", "strategy='fedcom'"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 1
    assert (
        "strategy: expected one of fedcome, fedavg, fedprox, scaffold, feddyn, feddc, fedfv; got 'fedcom'"
        in finished.stderr
    )


def test_the_demo_prints_its_table_and_draws_its_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    picture = tmp_path / "demo.png"
    command = [sys.executable, str(QUICKSTART / "demo.py"), "--rounds", "3", "--output", str(picture)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "FedAvg" in finished.stdout
    assert "FedCOME" in finished.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
