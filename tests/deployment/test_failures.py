"""What is killed, what the server sees, and how training goes on."""

import json
import os
import signal
import time

import numpy as np
import pytest

from tests.deployment.conftest import APP
from tests.deployment.federation import DONE, Federation

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def arrays_of(path):
    with np.load(path) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


def test_a_device_killed_in_mid_round_is_missed_and_comes_back_under_its_name(tmp_path, data, record_property):
    report = tmp_path / "rounds.jsonl"
    with Federation(tmp_path / "federation") as federation:
        for name in ("0", "1", "2"):
            federation.start_device(name, data / name)
        federation.wait_for("three devices online", lambda: federation.online() == 3)
        run = federation.submit(APP, {"num-server-rounds": 3, "least-devices": 2, "report": str(report)})
        federation.wait_for(
            "training in round 2", lambda: federation.log("device-2").count("Receiving: train message") == 2
        )
        federation.kill("device-2")
        federation.stop("device-2-exec")
        killed = time.monotonic()
        federation.wait_for("end of round 2", lambda: len(lines_of(report)) >= 2)
        record_property("seconds_until_the_round_ended", time.monotonic() - killed)
        assert federation.finish(run) == DONE
        rounds = lines_of(report)
        assert [sorted(line["clients"]) for line in rounds] == [["0", "1", "2"], ["0", "1"], ["0", "1"]]
        assert [line["missing"] for line in rounds] == [[], ["2"], []]

        # Who asks for three devices is told that there are two, and what to do.
        run = federation.submit(APP, {"num-server-rounds": 1, "least-devices": 3, "node-timeout": 4.0})
        assert federation.finish(run) == "finished:failed"
        assert "expected at least 3 nodes online, found 2 after 4 s; start more SuperNodes" in federation.run_log(run)

        def is_back():
            federation.stop("device-2")
            federation.stop("device-2-exec")
            federation.start_device("2", data / "2", register=False)
            time.sleep(5)
            return federation.online() == 3

        federation.wait_for("device 2 back", is_back)
        again = tmp_path / "again.jsonl"
        run = federation.submit(APP, {"num-server-rounds": 1, "least-devices": 3, "report": str(again)})
        assert federation.finish(run) == DONE
        assert [sorted(line["clients"]) for line in lines_of(again)] == [["0", "1", "2"]]


def test_a_killed_server_app_goes_on_from_its_checkpoint_with_the_same_bytes(tmp_path, data, federation):
    whole, resumed, report = tmp_path / "whole.npz", tmp_path / "resumed.npz", tmp_path / "rounds.jsonl"
    run = federation.submit(APP, {"num-server-rounds": 3, "output": str(whole)})
    assert federation.finish(run) == DONE

    config = {"num-server-rounds": 3, "checkpoint": str(tmp_path / "run.npz"), "output": str(resumed)}
    config["report"] = str(report)
    run = federation.submit(APP, config)
    federation.wait_for("end of round 1", lambda: len(lines_of(report)) == 1)
    (server,) = federation.processes("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    assert federation.finish(run) == "finished:failed"
    assert not resumed.exists()

    run = federation.submit(APP, config | {"resume": True})
    assert federation.finish(run) == DONE
    assert [line["round"] for line in lines_of(report)] == [1, 2, 3]
    assert arrays_of(resumed) == arrays_of(whole)
