"""The app on this machine: what `fedcome doctor` finds in its packages, imports and data."""

import sys

import pytest
from typer.testing import CliRunner

from fedcome_flwr.cli.doctor import check_app
from fedcome_flwr.cli.main import app as command
from fedcome_flwr.simulation.app_folder import read_app_folder
from tests.unit.simulation.apps import write_app

ANSWERS = """
@app.query("data")
def look(message, context):
    if "broken" in context.node_config:
        raise OSError("train.npz is cut off")
    sizes = MetricRecord({"num-train-examples": 30, "num-test-examples": 0})
    return Message(RecordDict({"metrics": sizes}), reply_to=message)
"""


@pytest.fixture
def folder(tmp_path):
    return write_app(tmp_path / "app")


def found(folder, **node_config):
    findings = list(check_app(read_app_folder(folder), node_config))
    return {finding.check: finding for finding in findings}


def require(folder, text):
    file = folder / "pyproject.toml"
    file.write_text(file.read_text().replace("[project]\n", f"[project]\ndependencies = [{text!r}]\n"))


def change(folder, module, text):
    file = folder / "tiny" / f"{module}.py"
    file.write_text(file.read_text() + text)


def test_an_app_that_is_well(folder):
    findings = found(folder)
    assert {name: finding.state for name, finding in findings.items()} == {
        "versions": "ok",
        "ServerApp": "ok",
        "ClientApp": "ok",
    }
    assert findings["versions"].text.startswith(f"Python {sys.version.split()[0]}, flwr 1.")


@pytest.mark.parametrize(
    ("requirement", "state", "text"),
    [
        ("numpy>=1", "ok", "is what the app asks for"),
        ("numpy>=99", "problem", "the app needs numpy>=99, here is "),
        ("no-such-package", "problem", "no-such-package, which is not installed here"),
        ("numpy 99", "problem", "'numpy 99' is no requirement"),
    ],
)
def test_packages(folder, requirement, state, text):
    require(folder, requirement)
    finding = found(folder)["packages"]
    assert finding.state == state
    assert text in finding.text
    assert bool(finding.advice) == (state == "problem")


def test_a_package_for_other_machines_is_not_missed(folder):
    require(folder, "no-such-package; sys_platform == 'none'")
    assert "packages" not in found(folder)


def test_an_import_of_what_is_not_installed(folder):
    change(folder, "client_app", "\nimport no_such_module\n")
    findings = found(folder)
    assert findings["ClientApp"].text == "cannot be imported: No module named 'no_such_module'"
    assert sys.executable in findings["ClientApp"].advice
    assert (findings["ServerApp"].state, findings["ClientApp"].state) == ("ok", "problem")


def test_an_app_that_raises_while_it_is_imported(folder):
    change(folder, "server_app", "\nraise ValueError('not today\\nnor tomorrow')\n")
    finding = found(folder)["ServerApp"]
    assert finding.text == "cannot be imported: ValueError: not today"


def test_a_component_that_is_none(folder):
    change(folder, "client_app", "\napp = 3\n")
    finding = found(folder)["ClientApp"]
    assert finding.state == "problem"
    assert "is a int, not a flwr ClientApp" in finding.text


def test_paths_of_the_node_configuration(folder, tmp_path):
    there, away = tmp_path / "app", tmp_path / "away"
    assert found(folder, data=str(there))["paths"].state == "ok"
    finding = found(folder, data=str(away), site="north")["paths"]
    assert (finding.state, finding.text) == ("problem", f"data: {away}: No such file or directory")
    assert "--node-config" in finding.advice


def test_data_are_tried_where_the_client_answers(folder):
    finding = found(folder, site="north")["data"]
    assert (finding.state, finding.text) == (
        "open",
        "the ClientApp answers no query.data, so its data were not tried",
    )
    change(folder, "client_app", ANSWERS)
    assert found(folder, site="north")["data"].text == "30 examples to train on, ? to test on"
    finding = found(folder, broken=True)["data"]
    assert (finding.state, finding.text) == ("problem", "cannot be loaded: OSError: train.npz is cut off")
    assert "data" not in found(folder)  # nobody said which


class TestCommand:
    def doctor(self, *words):
        return CliRunner().invoke(command, ["doctor", *map(str, words)])

    def test_a_line_for_each_finding_and_success(self, folder):
        result = self.doctor(folder)
        assert result.exit_code == 0
        assert [line.split()[:2] for line in result.stdout.splitlines()] == [
            ["ok", "versions"],
            ["ok", "ServerApp"],
            ["ok", "ClientApp"],
        ]

    def test_problems_end_with_1_and_say_what_to_do(self, folder):
        require(folder, "no-such-package")
        result = self.doctor(folder, "--superlink", "127.0.0.1:1", "--insecure")
        assert result.exit_code == 1
        assert "-> pip install 'no-such-package'" in result.stdout
        assert "problem  port" in result.stdout
        assert "error: 2 problems found" in result.stderr

    def test_what_cannot_be_used_ends_with_2(self, folder, tmp_path):
        assert self.doctor(tmp_path / "nowhere").exit_code == 2
        result = self.doctor(folder, "--superlink", "https://a:1")
        assert result.exit_code == 2
        assert "without https://" in result.stderr
        result = self.doctor(folder, "--node-config", "data=/data")
        assert result.exit_code == 2
        assert "node-config: data=/data is no TOML value" in result.stderr
