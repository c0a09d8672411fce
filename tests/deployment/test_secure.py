"""TLS, keys and process isolation: what a federation across machines consists of, here on loopback."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcome_flwr.cli.main import app as fedcome
from fedcome_flwr.simulation import run_app
from tests.deployment.conftest import APP
from tests.deployment.federation import DONE

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def inline(tmp_path_factory, data):
    """The same run in this process: path of its model."""
    output = tmp_path_factory.mktemp("inline") / "model.npz"
    config = {"num-server-rounds": 2, "data-root": str(data), "output": str(output)}
    run_app(APP, num_supernodes=3, run_config=config, seed=0)
    return output


def test_devices_train_what_the_inline_run_trains(federation, inline, tmp_path):
    output, report = tmp_path / "model.npz", tmp_path / "rounds.jsonl"
    run = federation.submit(APP, {"num-server-rounds": 2, "output": str(output), "report": str(report), "seed": 0})
    assert federation.finish(run) == DONE
    with np.load(output) as trained, np.load(inline) as expected:
        assert trained.files == expected.files
        for name in expected.files:
            np.testing.assert_allclose(trained[name], expected[name], rtol=0, atol=1e-6)
    rounds = [json.loads(line) for line in report.read_text().splitlines()]
    assert [sorted(line["clients"]) for line in rounds] == [["0", "1", "2"]] * 2  # known by their registered names
    assert all(line["certified"] and not line["hurt_by_direction"] for line in rounds)


def test_doctor_finds_a_federation_well_and_names_what_is_wrong(federation, data, tmp_path):
    def doctor(*words, folder=federation.keys, device="0", host="127.0.0.1"):
        options = ["--superlink", f"{host}:{federation.port}", "--root-certificates", folder / "ca.crt"]
        options += ["--auth-supernode-private-key", folder / device, "--nodes", 3]
        result = CliRunner().invoke(fedcome, ["doctor", str(APP), *map(str, options), *words])
        lines = [line for line in result.stdout.splitlines() if not line.lstrip().startswith("->")]
        return result.exit_code, {line.split()[1]: line.split(maxsplit=2) for line in lines}

    code, lines = doctor("--node-config", f'data="{data / "0"}"')
    assert code == 0, lines
    assert {state for state, _, _ in lines.values()} == {"ok"}
    assert lines["key"][2] == "registered as 0, and online now"
    assert lines["nodes"][2].startswith("3 online, 3 needed")
    assert lines["data"][2].endswith(" to test on")

    federation.make_keys("newcomer")
    code, lines = doctor(device="newcomer")
    assert (code, lines["key"][0]) == (1, "problem")
    assert "is not registered at the SuperLink" in lines["key"][2]

    federation.make_keys("0", folder=tmp_path / "other")
    code, lines = doctor(folder=tmp_path / "other")
    assert (code, lines["certificate"][0]) == (1, "problem")
    assert "does not vouch for" in lines["certificate"][2]

    code, lines = doctor("--node-config", "data='/nowhere/at-all'")
    assert (code, lines["paths"][0], lines["data"][0]) == (1, "problem", "problem")


def test_an_unregistered_key_is_refused(federation, data):
    federation.start_device("stranger", data / "0", register=False)
    assert federation.exit_code("device-stranger") != 0
    assert "Failed to activate SuperNode" in federation.log("device-stranger")
    assert federation.online() == 3


def test_a_superlink_with_another_authority_is_refused(federation, data, tmp_path):
    federation.make_keys("x", folder=tmp_path / "other")
    federation.start_device("deceived", data / "0", authority=tmp_path / "other" / "ca.crt")
    federation.wait_for("refusal", lambda: "certificate verify failed" in federation.log("device-deceived").lower())
    assert federation.online() == 3
    federation.stop("device-deceived")
