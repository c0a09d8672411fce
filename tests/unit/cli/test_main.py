import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedcome_flwr import __version__
from fedcome_flwr.cli.main import app
from tests.unit.simulation.apps import write_app


@pytest.fixture
def folder(tmp_path):
    return write_app(tmp_path / "app")


def fedcome(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_version():
    result = fedcome("--version")
    assert (result.exit_code, result.stdout) == (0, f"fedcome-flwr {__version__}\n")


def test_a_run_prints_a_line_per_round_and_the_last_metrics(folder):
    result = fedcome("run", folder, "--num-supernodes", 4, "--seed", 1)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    rounds = [line for line in lines if line.startswith("round ")]
    assert [line.split(":")[0] for line in rounds] == ["round 1 of 2", "round 2 of 2"]
    assert "6 replies | train: loss " in rounds[0]
    assert "| evaluate: accuracy 0.25 | server: global-loss 0.5" in rounds[0]
    assert lines[0] == "fedcome: a line of ours"
    assert "before round 1 | server: global-loss 1" in lines
    assert any(line.split() == ["global-loss", "0.3333"] for line in lines)
    assert lines[-1].startswith("finished in ")
    assert lines[-1].endswith(" s, 12 replies")
    assert "name tiny" in lines


def test_output_is_plain_where_there_is_no_terminal(folder):
    result = fedcome("run", folder, "--num-supernodes", 4, "--run-config", "fail='client 1'")
    for text in (result.stdout, result.stderr):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())


def test_flowers_log_is_quiet_but_for_warnings_unless_asked(folder):
    quiet, verbose = fedcome("run", folder), fedcome("run", folder, "--verbose")
    assert quiet.stderr == "WARNING: a warning of Flower's\n"
    assert "configure_train" not in quiet.stdout
    assert "configure_train: Sampled 2 nodes" in verbose.stdout


def test_run_config_from_pairs_and_file(folder, tmp_path):
    (tmp_path / "more.toml").write_text("num-server-rounds = 1\n")
    result = fedcome("run", folder, "-c", tmp_path / "more.toml", "-c", "lr=1 fail='none'")
    assert "round 1 of 1" in result.stdout


def test_some_failing_clients_do_not_fail_the_run(folder):
    result = fedcome("run", folder, "--num-supernodes", 4, "-c", "fail='client 1' num-server-rounds=9", "--seed", 1)
    assert result.exit_code == 0
    assert "first error: ValueError: no data at tiny 1" in result.stdout
    assert result.stdout.count("first error of a client: ValueError: no data at tiny 1\n") == 1


def test_a_failing_server_fails_the_run(folder):
    result = fedcome("run", folder, "-c", "fail='server'")
    assert result.exit_code == 1
    assert "server_app.py:" in result.stderr
    assert result.stderr.splitlines()[-1] == "RuntimeError: the disk is full"
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(folder):
    done = subprocess.run(
        [sys.executable, "-m", "fedcome_flwr", "run", folder, "--debug", "-c", "fail='clients'"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1] in ("ValueError: no data at tiny 0", "ValueError: no data at tiny 1")


def test_all_clients_failing_fails_the_run(folder):
    client = folder / "tiny" / "client_app.py"
    client.write_text(
        client.read_text().replace("metrics = MetricRecord", "raise ValueError('empty'); m = MetricRecord")
    )
    result = fedcome("run", folder)
    assert result.exit_code == 1
    assert "first error: ValueError: empty" in result.stdout
    assert result.stderr.splitlines()[-1] == "error: every client's reply to train and evaluate was an error"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-c", "nope=1"], "'nope' is not among the app's own, which are: fail, lr, model.size,"),
        (["-c", "lr='a'"], "'lr' needs a number"),
        (["-c", "lr"], "cannot read 'lr'"),
        (["--num-supernodes", "0"], "0 is not in the range"),
        (["--sed", "0"], "No such option"),
        (["--backend", "rai"], "must be one of inline, ray; got 'rai'"),
        (["--client-gpus", "0.5"], "client_gpus needs backend 'ray'"),
    ],
)
def test_wrong_usage_is_2(folder, words, text):
    result = fedcome("run", folder, *words)
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_folder_that_is_no_app_is_2(tmp_path):
    assert "has no pyproject.toml" in fedcome("run", tmp_path).stderr
    assert fedcome("run", tmp_path).exit_code == 2
    assert fedcome("run", tmp_path / "nowhere").exit_code == 2


def test_a_typing_error_in_the_apps_code_is_1(folder):
    (folder / "tiny" / "task.py").write_text("import no_such_package")
    result = fedcome("run", folder)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_package'"


def test_the_command_loads_neither_flower_at_once_nor_torch_nor_ray_at_all(folder):
    code = (
        "import sys; from fedcome_flwr.cli.main import app\n"
        "assert 'flwr' not in sys.modules\n"
        f"app(['run', {str(folder)!r}], standalone_mode=False)\n"
        "assert 'flwr' in sys.modules and not {'torch', 'ray'} & set(sys.modules)\n"
        "import os; assert os.environ['FLWR_TELEMETRY_ENABLED'] == '0'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
