"""The command `fedcome plot`."""

import sys

import pytest
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="needs the extra plot")

from fedcome_flwr import FedCOMEStrategy
from fedcome_flwr.cli.main import app
from fedcome_flwr.report import JsonLines
from fedcome_flwr.simulation import InlineGrid
from tests.unit.report._reports import report
from tests.unit.server._federation import federation, initial


def plot(*arguments):
    return CliRunner().invoke(app, ["plot", *map(str, arguments)])


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.jsonl"
    write = JsonLines(path)
    for number in (1, 2, 3):
        write(report(number))
    return path


def test_plots_stand_beside_the_report_and_each_is_printed(run, tmp_path):
    result = plot(run)
    assert result.exit_code == 0
    files = sorted((tmp_path / "run-plots").iterdir())
    assert [file.name for file in files] == [
        "conflicts.png", "learning.png", "losses.png", "selection.png", "step.png",
    ]  # fmt: skip
    assert all(str(file) in result.stdout for file in files)
    assert "not drawn: similarity: give the run's checkpoint" in result.stdout


def test_a_checkpoint_adds_the_similarity_table(run, tmp_path):
    checkpoint = tmp_path / "run.npz"
    with InlineGrid(federation(), 4, debug=True) as grid:
        FedCOMEStrategy(checkpoint=checkpoint).start(grid=grid, initial_arrays=initial(), num_rounds=2)
    result = plot(run, "--checkpoint", checkpoint, "--format", "svg", "-o", tmp_path / "here")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "here" / "similarity.svg").exists()
    assert "not drawn" not in result.stdout


def test_files_of_one_name_are_called_after_their_folders(run, tmp_path):
    from fedcome_flwr.cli.plotting import read_runs

    other = tmp_path / "b" / "run.jsonl"
    JsonLines(other)(report(1))
    assert [one.name for one in read_runs([run])] == ["run"]
    assert [one.name for one in read_runs([run, other])] == [str(run.with_suffix("")), str(other.with_suffix(""))]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "no such file"),
        ("", "found 0 other lines"),
        ('{"round": 1}\n', "expected round reports"),
        ("[1]\n", "expected a line of JSON a round"),
        ("not json\n", "expected a line of JSON a round"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, text):
    path = tmp_path / "other.jsonl"
    if content is not None:
        path.write_text(content)
    result = plot(path)
    assert result.exit_code == 2
    assert text in result.stderr
    assert str(path) in result.stderr


def test_a_missing_checkpoint_is_named(run, tmp_path):
    result = plot(run, "--checkpoint", tmp_path / "none.npz")
    assert result.exit_code == 2
    assert "none.npz" in result.stderr


def test_without_matplotlib_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = plot(run)
    assert result.exit_code == 1
    assert "fedcome-flwr[plot]" in result.stderr
