"""Whole runs on Ray: the same as in one process, whatever happens to the clients, and nothing stays behind.

Each run costs about ten seconds, nearly all of them Ray's start, so each shows several things.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedcome_flwr import FedCOMEStrategy
from fedcome_flwr.simulation import run_app
from tests.integration._ray_app import write_noisy_app
from tests.unit.server._federation import federation, initial
from tests.unit.server.test_numpy_clients import mixed_app, old_app

pytestmark = pytest.mark.integration

LEGACY = Path(__file__).parents[2] / "examples" / "legacy"
TEXT = """it's "quoted", = and spaced"""


@pytest.fixture
def folder(tmp_path):
    return write_noisy_app(tmp_path / "app")


def fedcome_run(folder, *words):
    """Run the command in a session of its own; what it starts belongs to that session, and is gone at its end."""
    command = [sys.executable, "-m", "fedcome_flwr", "run", str(folder), "--backend", "ray", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        stdout, stderr = process.communicate(timeout=120)
    assert processes_of(session=process.pid) == []
    return process.returncode, stdout, stderr


def processes_of(session: int) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return [" ".join(row) for row in rows if row[0] == str(session) and not row[1].startswith("Z")]


def final(run) -> np.ndarray:
    return run.results[-1].arrays["w"].numpy()


def test_inline_and_ray_give_the_same_result(folder):
    """With half of the clients in each round, every kind of run-config value, and clients that remember."""
    changes = {"lr": 0.25, "flag": True, "text": TEXT}
    inline, ray = (
        run_app(folder, num_supernodes=6, run_config=changes, seed=1, backend=backend) for backend in ("inline", "ray")
    )
    assert np.abs(final(ray) - final(inline)).max() <= 1e-6
    assert (ray.num_replies, ray.num_errors, ray.failed_phases) == (inline.num_replies, 0, ())
    last = ray.results[0].train_metrics_clientapp[3]
    assert (last["text"], last["flag"], last["fedcome-clients"]) == (len(TEXT), 1.0, 3)
    evaluations = [run.results[0].evaluate_metrics_clientapp[3] for run in (ray, inline)]
    assert evaluations[0] == evaluations[1]
    assert evaluations[0]["calls"] == 1.5  # three rounds, half of the clients in each
    assert ray.context.run_config["text"] == TEXT
    assert sorted(path.name for path in folder.rglob("*")) == sorted(
        ["noisy", "pyproject.toml", "__init__.py", "client_app.py", "server_app.py"]
    )


def test_old_and_new_clients_in_one_federation_and_a_server_that_fails():
    """Clients here do not say who they are: their order of registration is that of the partitions."""
    server = ServerApp()
    arrays = []

    @server.main()
    def main(grid, context):
        strategy = FedCOMEStrategy(fraction_train=0.5)
        arrays.append(strategy.start(grid=grid, initial_arrays=initial(), num_rounds=2).arrays["w"].numpy())
        raise OSError("the disk is full")

    class Mixed(ClientApp):
        def __call__(self, message, context):
            return mixed_app(old_app(), federation(query=False))(message, context)

    for backend in ("inline", "ray"):
        with pytest.raises(OSError, match="the disk is full"):
            run_app((server, Mixed()), num_supernodes=6, backend=backend)
    assert np.abs(arrays[0] - arrays[1]).max() <= 1e-6


def test_a_client_that_raises_and_one_whose_process_dies_are_named_and_the_run_goes_on(folder):
    code, stdout, stderr = fedcome_run(folder, "--num-supernodes", "4", "-c", "raise='1' die='2' num-server-rounds=4")
    assert code == 0, stderr
    assert [f"round {number} of 4: " in stdout for number in (1, 2, 3, 4)] == [True] * 4
    assert "fedcome round 4: fedcome over " in stdout
    assert "client 1 left out: " in stderr
    assert "ValueError: no data at 1" in stderr
    assert "client 2 left out: " in stderr
    assert "the client's process died" in stderr
    assert "client 0 left out" not in stderr
    assert "client 3 left out" not in stderr
    assert not any(word in stdout + stderr for word in ("DEPRECATED", "raylet", "\x1b"))


def test_all_clients_raising_fails_the_run(folder):
    code, stdout, stderr = fedcome_run(folder, "--num-supernodes", "3", "-c", "raise='all' num-server-rounds=2")
    assert code == 1
    assert "first error of a client: ValueError: no data at " in stdout
    assert stderr.splitlines()[-1] == "error: every client's reply to train and evaluate was an error"


def test_clients_that_fit_nowhere_are_an_error_at_once(folder):
    code, _, stderr = fedcome_run(folder, "--client-cpus", "100000")
    assert code == 1
    assert "simulation engine failed: ActorPool is empty" in stderr


def test_a_legacy_server_and_its_clients(tmp_path):
    pytest.importorskip("sklearn", reason="needs the extra data")
    app = tmp_path / "legacy"
    shutil.copytree(LEGACY, app, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "fedcome.diff"], cwd=app, check=True, capture_output=True)
    code, stdout, stderr = fedcome_run(app, "--num-supernodes", "5", "-c", "num-server-rounds=2")
    assert code == 0, stderr
    assert "fedcome round 2: fedcome over 5 clients" in stdout


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_an_interrupted_run_leaves_nothing_behind(folder, stop):
    command = [sys.executable, "-m", "fedcome_flwr", "run", str(folder), "--backend", "ray"]
    with subprocess.Popen(
        [*command, "-c", "num-server-rounds=100000"], start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as process:
        assert any("round 2 of" in line for line in process.stdout)
        process.send_signal(stop)
        assert process.wait(timeout=30) == 130
    assert processes_of(session=process.pid) == []


def test_plain_flwr_run_gives_the_same_result(folder, tmp_path):
    """On the same folder, in the surroundings that docs/simulation.md describes."""
    home, empty, output = tmp_path / "home", tmp_path / "empty", tmp_path / "w.npy"
    empty.mkdir()
    ports = free_ports(2)
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": ports[0],
        "FLWR_LOCAL_CONTROL_API_PORT": ports[1],
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    federation = ["--federation-config", "num-supernodes=6 client-resources-num-cpus=1"]
    flwr = [sys.executable, "-c", "from flwr.cli.app import app; app()"]
    options = {"cwd": empty, "env": environment, "capture_output": True, "text": True, "timeout": 120, "check": False}
    try:
        run = subprocess.run(
            [*flwr, "run", str(folder), "local", "--stream", "--run-config", f"output='{output}'", *federation],
            **options,
        )
        listing = subprocess.run([*flwr, "list", "local", "--format", "json"], **options)
    finally:
        end_daemons(home)
    assert json.loads(listing.stdout)["runs"][0]["status"] == "finished:completed", run.stdout + run.stderr
    assert np.abs(np.load(output) - final(run_app(folder, num_supernodes=6))).max() <= 1e-6


def free_ports(number: int) -> list[str]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def end_daemons(home: Path) -> None:
    """End what `flwr run` left: the processes that were given this home."""
    mark = f"FLWR_HOME={home}".encode()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), number)
        time.sleep(2)
