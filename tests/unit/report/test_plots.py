import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra plot")

from fedcome_flwr.core import SimilarityTable
from fedcome_flwr.report import JsonLines, RunData, draw_plots, read_rounds
from fedcome_flwr.report.plots import by_clusters
from fedcome_flwr.report.run_data import rises
from tests.unit.report._reports import report

PLOTS = ["learning", "losses", "conflicts", "step", "selection", "similarity"]


def run(tmp_path, name="run", rounds=4, **values) -> RunData:
    write = JsonLines(tmp_path / f"{name}.jsonl")
    for number in range(1, rounds + 1):
        write(report(number, **values))
    return RunData(name, read_rounds(tmp_path / f"{name}.jsonl"))


def blocks() -> SimilarityTable:
    """Two groups of like clients, seen in mixed order; the groups are opposed."""
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    return SimilarityTable().observed(list("vwxyz"), np.outer(signs, signs), 0.0)


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xm")])
def test_every_plot_is_drawn_with_the_same_bytes_in_every_run(tmp_path, kind, magic):
    runs = [run(tmp_path, "one"), run(tmp_path, "two", rounds=3)]
    paths, missing = draw_plots(runs, tmp_path / "plots", kind=kind, table=blocks())
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in PLOTS]
    assert missing == []
    first = [path.read_bytes() for path in paths]
    assert all(content[:4] == magic for content in first)
    draw_plots(runs, tmp_path / "plots", kind=kind, table=blocks())
    assert [path.read_bytes() for path in paths] == first


@pytest.mark.parametrize("count", [1, 3, 5])
def test_any_number_of_runs_is_compared(tmp_path, count):
    paths, _ = draw_plots([run(tmp_path, f"r{number}") for number in range(count)], tmp_path / "plots")
    assert len(paths) == len(PLOTS) - 1


def test_what_a_run_does_not_have_is_named(tmp_path):
    nothing = {"evaluations": {}, "server_metrics": {}, "train_losses": (None, None, None), "times_chosen": {}}
    paths, missing = draw_plots([run(tmp_path, **nothing)], tmp_path / "plots")
    assert [path.stem for path in paths] == ["conflicts", "step"]
    assert [text.split(":")[0] for text in missing] == ["learning", "losses", "selection", "similarity"]
    assert "expected 'accuracy' or 'loss'" in missing[0]
    assert "'train-loss'" in missing[1]
    assert "--checkpoint" in missing[3]


def test_another_metric_or_the_servers_test_will_do(tmp_path):
    dice = {"evaluations": {"a": {"num-examples": 1, "dice": 0.4}}}
    assert draw_plots([run(tmp_path, **dice)], tmp_path / "plots", metric="dice")[0][0].stem == "learning"
    assert draw_plots([run(tmp_path, evaluations={})], tmp_path / "plots")[0][0].stem == "learning"


def test_evaluations_are_weighted_by_examples_and_four_clients_in_five_lie_in_the_band(tmp_path):
    mean, low, high = run(tmp_path).evaluated("accuracy")[1]
    assert mean == pytest.approx((0.2 * 20 + 0.4 * 30 + 0.6 * 40) / 100)
    assert (low, high) == pytest.approx(np.quantile([0.0, 0.2, 0.4, 0.6], [0.1, 0.9]))
    assert np.isnan(run(tmp_path).evaluated("unknown")).all()


def test_losses_have_gaps_where_a_client_was_away_and_rise_above_the_last_one_reported(tmp_path):
    keys, losses = run(tmp_path).losses()
    assert keys == ["a", "b", "c"]
    np.testing.assert_allclose(losses[:, 2], [2.9, np.nan, 2.7, np.nan])
    np.testing.assert_array_equal(rises(losses)[:, 1], [False, True, True, True])
    assert not rises(losses)[:, [0, 2]].any()
    late = np.array([[1.0], [np.nan], [1.1]])
    np.testing.assert_array_equal(rises(late)[:, 0], [False, False, True])


def test_who_was_chosen_most_comes_first(tmp_path):
    keys, counts = run(tmp_path).chosen()
    assert keys == ["a", "b", "c"]
    np.testing.assert_array_equal(counts, [[4, 4, 2], [4, 0, 0]])


def test_clusters_stand_side_by_side():
    order = by_clusters(blocks())
    assert sorted(order) == list("vwxyz")
    assert set(order[:2]) == set("wy") or set(order[:3]) == set("vxz")
    assert by_clusters(SimilarityTable()) == []
    assert by_clusters(SimilarityTable().observed(["b", "a"], np.eye(2), 0.5)) == ["a", "b"]
