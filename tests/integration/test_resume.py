"""Runs that are killed and go on."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedcome_flwr.report import read_rounds
from fedcome_flwr.server.checkpoint import load_checkpoint
from tests.integration._resume_run import METHODS, ROUNDS

ROOT = Path(__file__).parents[2]


def begin(method: str, folder: Path) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    (folder / "started").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.integration._resume_run", method, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]


@pytest.mark.parametrize(
    ("method", "kills"), [("feddc", 2), *[pytest.param(name, 20, marks=pytest.mark.slow) for name in sorted(METHODS)]]
)
def test_a_run_killed_at_random_instants_ends_with_the_same_bytes(method, kills, tmp_path):
    process = begin(method, tmp_path / "whole")
    while not (tmp_path / "whole" / "started").exists():
        time.sleep(0.01)
    training_began = time.monotonic()
    finish(process)
    seconds = time.monotonic() - training_began

    delays, longest = random.Random(kills), 1.5 * seconds / kills
    folder, killed, rounds = tmp_path / "killed", 0, [0]
    while killed < kills or rounds[-1] == 0:
        process = begin(method, folder)
        while not (folder / "started").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(delays.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        if (folder / "run.npz").exists():
            rounds.append(load_checkpoint(folder / "run.npz").state.round)
        killed += 1
        if rounds[-1] == 0:
            longest *= 1.5  # it got nowhere; the machine may have become slower
    finish(begin(method, folder))
    assert rounds == sorted(rounds)
    assert (folder / "final").read_bytes() == (tmp_path / "whole" / "final").read_bytes()
    assert load_checkpoint(folder / "run.npz").state.round == ROUNDS
    assert load_checkpoint(folder / "run.npz").state.memory.epoch == 0  # no client's memory had to start anew
    numbers = [line["round"] for line in read_rounds(folder / "rounds.jsonl")]
    assert numbers == sorted(set(numbers))  # none twice
    if rounds[-1] < ROUNDS:  # else the last kill may have come between the last checkpoint and its line
        assert numbers[-1] == ROUNDS
    assert numbers[-1] >= ROUNDS - 1


def test_the_command_resumes_a_run(tmp_path):
    for module in ("torch", "torchvision", "flwr_datasets", "sklearn"):
        pytest.importorskip(module, reason="the quickstart needs the extras torch and data")
    checkpoint = tmp_path / "run.npz"

    def run(rounds: int, *options: str) -> subprocess.CompletedProcess:
        config = f"num-server-rounds={rounds} checkpoint='{checkpoint}' fraction-evaluate=0.5"
        command = [sys.executable, "-m", "fedcome_flwr", "run", str(ROOT / "examples" / "quickstart"), "--seed", "0"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*command, "--num-supernodes", "4", "--run-config", config, *options],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )

    assert run(4).returncode == 0
    whole = {name: array.tobytes() for name, array in load_checkpoint(checkpoint).arrays.items()}
    for file in tmp_path.iterdir():
        file.unlink()
    assert run(2).returncode == 0
    assert load_checkpoint(checkpoint).state.round == 2
    finished = run(4, "--resume", str(checkpoint))
    assert finished.returncode == 0, finished.stderr
    assert load_checkpoint(checkpoint).state.round == 4
    assert {name: array.tobytes() for name, array in load_checkpoint(checkpoint).arrays.items()} == whole

    missing = run(4, "--resume", str(tmp_path / "none.npz"))
    assert missing.returncode == 2
    assert "resume: expected a checkpoint, found no file" in missing.stderr
