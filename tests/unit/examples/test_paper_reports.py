"""From kept runs to tables, figures and verdicts."""

import json
import math

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("matplotlib", reason="needs the extra plot")

from examples.paper import protocol, reporting, store
from examples.paper.protocol import SCALES
from examples.paper.reporting import claims, figures, groups, tables
from examples.paper.runs import TARGETS, Choice, runs_of

SMALL = SCALES["small"]


@pytest.fixture(autouse=True)
def own_results(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(reporting, "RESULTS", tmp_path)
    monkeypatch.setattr(protocol, "CHOICES", tmp_path / "grid.json")


def keep(run, accuracy=0.9, rises=0, **values):
    """A made-up run that climbs to ``accuracy`` within its first ten rounds."""
    lines = []
    for number in range(1, 31):
        line = {
            "kind": "round",
            "round": number,
            "accuracy": accuracy * min(1.0, number / 10),
            "global_accuracy": accuracy,
            "worst_client": 0.5,
            "spread": 0.1,
            "rises": rises,
            "rises_of": 10,
            "rises_unselected": rises,
            "conflicts": 0.3,
            "relative_change": 0.5,
            "remaining_conflicts": 0.1,
            "smoothness_limit": 2.0,
            "bytes_up": 100_000,
            "bytes_down": 100_000,
            "client_accuracies": {"0": 0.8, "1": 0.9},
            "client_losses": {"0": 1 / number, "1": 2 / number},
        }
        lines.append(line | values)
    store.write(run.name, [run.header(), *lines, {"kind": "end", "seconds": 1.0}])


def keep_all(target, accuracies=None, **wanted):
    for run in runs_of(target, SMALL, Choice()):
        if all(getattr(run, name) == value for name, value in wanted.items()):
            keep(run, (accuracies or {}).get(run.arm, 0.8) + 0.001 * run.seed)


def verdicts():
    return {int(row[0]): (row[2], row[3]) for row in claims.judge(SMALL).rows}


def test_without_runs_everything_but_speed_is_open():
    found = verdicts()
    assert len(found) == 14
    assert [number for number, (_, verdict) in found.items() if verdict != "open"] == [12]


@pytest.mark.parametrize("target", TARGETS)
def test_without_runs_nothing_is_drawn_and_the_data_sets_are_named(target, tmp_path, capsys):
    reporting.report(target, SMALL, Choice(["cifar10"]))
    assert not list((tmp_path).rglob("*cifar10*"))
    assert f"{target}: open on CIFAR-10, of which no run is kept" in capsys.readouterr().out


@pytest.mark.parametrize(("rises", "verdict"), [(0, "holds"), (3, "does not hold")])
def test_claim_one_counts_rises(rises, verdict):
    for run in runs_of("figure2", SMALL, Choice(["mnist"])):
        keep(run, rises=rises)
    number, found = verdicts()[1]
    assert found == verdict
    assert f"{30 * rises} of 300 rose" in number
    assert "L = 2" in number


@pytest.mark.parametrize(
    ("ours", "best", "fast"), [(0.85, "holds", "holds"), (0.796, "holds", "holds"), (0.7, "does not hold", "mixed")]
)
def test_claims_three_and_four_rank_the_methods(ours, best, fast):
    keep_all("table1", {"fedcome": ours}, dataset="mnist")
    number, verdict = verdicts()[3]
    assert verdict == best
    assert f"FedCOME {ours + 0.001:.3f}" in number
    if fast == "mixed":  # never reaches FedAvg's accuracy
        assert verdicts()[4][1] == "does not hold"
    else:
        assert verdicts()[4][1] == fast


def test_one_data_set_of_two_is_mixed():
    keep_all("table1", {"fedcome": 0.85}, dataset="mnist")
    keep_all("table1", {"fedcome": 0.7}, dataset="femnist")
    assert verdicts()[3][1] == "mixed"


def test_data_sets_without_runs_are_named_beside_the_verdict():
    keep_all("table1", {"fedcome": 0.85}, dataset="mnist")
    for number in (3, 4, 6):
        assert verdicts()[number][0].endswith("; open: FEMNIST, CIFAR-10, CIFAR-100")


def test_a_run_whose_loss_explodes_is_marked_and_does_not_count_as_soft_correction():
    keep_all("table1", dataset="femnist")
    for run in runs_of("table1", SMALL, Choice(["femnist"], ["scaffold"])):
        keep(run, 0.1)
        lines = store.path_of(run.name).read_text().splitlines()
        rounds = [json.loads(line) for line in lines]
        for line in rounds[1:-1]:
            line["loss"] = 4.0 * 1.5 ** line["round"]
        store.write(run.name, rounds)
    table = tables.build("table1", SMALL, Choice(["femnist"]))[0]
    assert [row[0] for row in table.rows if "diverged" in row[0]] == ["SCAFFOLD, diverged"]
    assert "SCAFFOLD diverged" in verdicts()[13][0]


def test_a_missing_method_leaves_a_comparison_open():
    keep_all("table1", {"fedcome": 0.85}, dataset="mnist")
    for run in runs_of("table1", SMALL, Choice(["mnist"], ["feddc"])):
        store.path_of(run.name).unlink()
    assert verdicts()[3] == ("no complete runs", "open")


@pytest.mark.parametrize(("uniform", "consensus", "verdict"), [(20, 2, "holds"), (20, 15, "does not hold")])
def test_claim_two_compares_the_rises_of_unselected_clients(uniform, consensus, verdict):
    for run in runs_of("figure3", SMALL, Choice(["mnist"])):
        keep(run, rises=consensus if run.selection == "consensus" else uniform)
    assert verdicts()[2][1] == verdict


@pytest.mark.parametrize(("gain", "verdict"), [(0.03, "holds"), (-0.03, "does not hold"), (0.0, "does not hold")])
def test_gains_are_paired_by_seed(gain, verdict):
    for run in runs_of("table3", SMALL, Choice(["mnist"])):
        noise = 0.02 * run.seed  # the same in both arms
        jitter = 0.001 * run.seed * (run.selection == "consensus")
        keep(run, 0.8 + noise + jitter + gain * (run.selection == "consensus"))
    number, found = verdicts()[9]
    assert found == verdict
    assert f"{100 * (gain + 0.001):+.2f} points" in number


def test_intervals_and_rounds():
    runs = runs_of("table1", SMALL, Choice(["mnist"], ["fedavg", "fedcome"]))
    for run in runs:
        keep(run, 0.8 + (0.05 + 0.01 * run.seed) * (run.arm == "fedcome"))
    fedavg, fedcome = groups.grouped(runs)
    low, mean, high = groups.paired_interval(fedcome, fedavg)
    assert mean == pytest.approx(0.06)
    # t quantile of 2 degrees of freedom, 4.303, times 0.01 / √3.
    assert high - mean == mean - low == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=1e-3)
    record = fedavg.records[0]
    assert groups.rounds_to(record, 0.8) == 12  # rounds 10, 11 and 12 are the first three at 0.8
    assert groups.rounds_to(record, 0.81) is None
    rounds, megabytes = groups.reached(fedavg, fedavg)
    assert rounds == "12 ± 0"
    assert megabytes == "2 ± 0"  # 12 rounds of 0.2 MB


def test_the_table_of_steps_shows_how_far_accuracy_fell(tmp_path):
    for run in runs_of("steps", SMALL, Choice(["mnist"], ["fedcome"], [0])):
        keep(run, server_step=0.5, update_norm=0.25)
    record = store.load(run.name)
    record.rounds[20]["accuracy"] = 0.3
    assert groups.deepest_fall(record) == pytest.approx(0.6)
    markdown, _ = tables.build("steps", SMALL, Choice(["mnist"]))[0].write(tmp_path / "tables")
    lines = markdown.read_text().splitlines()
    assert "| FedCOME | 20% | 1 of 3 | 0.900 | 0.000 | 0.0 | 0.50 to 0.50 | 0.25 to 0.25 |" in lines
    assert sum("open" in line for line in lines) == 6  # three other arms, two participations


def test_open_cells_say_so_and_files_are_written(tmp_path):
    keep_all("table1", {"fedcome": 0.85}, dataset="mnist", seed=0)
    table = tables.build("table1", SMALL, Choice(["mnist"]))[0]
    markdown, comma = table.write(tmp_path / "tables")
    assert "| FedCOME | 1 of 3 | 0.850 | +0.050 |" in markdown.read_text()
    assert comma.read_text().splitlines()[1].startswith("FedAvg,1 of 3,0.800")


@pytest.mark.parametrize("target", ["figure1", "figure2", "figure3", "figure4"])
def test_figures_are_the_same_bytes_in_every_run(target, tmp_path):
    dataset = "femnist" if target == "figure4" else "mnist"
    for run in runs_of(target, SMALL, Choice([dataset])):
        keep(run)
    first = [path.read_bytes() for path in figures.draw(target, SMALL, Choice([dataset]), tmp_path)]
    paths = figures.draw(target, SMALL, Choice([dataset]), tmp_path)
    assert [path.name for path in paths] == [f"{target}-{dataset}-small.{kind}" for kind in ("png", "svg")]
    assert [path.read_bytes() for path in paths] == first
    assert paths[0].read_bytes()[:4] == b"\x89PNG"


def test_a_report_of_one_method_keeps_the_others(tmp_path):
    keep_all("table1", dataset="mnist")
    reporting.report("table1", SMALL, Choice(["mnist"], ["fedcome"], [0]))
    text = (tmp_path / "tables" / "table1-mnist-small.md").read_text()
    assert "| FedAvg | 3 of 3 |" in text
