"""What the paper's command line runs, keeps and goes on with."""

import dataclasses
import json
import tomllib

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from examples.paper import cli, engine, protocol, store
from examples.paper.protocol import ARMS, CONTROLS, METHODS, REMEDIES, SCALES
from examples.paper.runs import TARGETS, Choice, make_run, runs_of
from fedcome_flwr.simulation.run_config import override

TINY = dataclasses.replace(SCALES["small"], rounds={"mnist": 4}, clients={"mnist": 10}, seeds={"mnist": (0,)})


pytestmark = pytest.mark.filterwarnings("ignore:no client holds the classes")  # ten clients of random classes


@pytest.fixture
def digits(monkeypatch, tmp_path):
    """MNIST's place is taken by data that need no download, and results go to a folder of the test's own."""
    monkeypatch.setitem(protocol.DATASETS, "mnist", dataclasses.replace(protocol.DATASETS["mnist"], hub="digits"))
    monkeypatch.setattr(store, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(engine, "WORK", tmp_path / "unfinished")


def execute(run):
    engine.execute(run, data=None, backend="inline", device="cpu", command="test")
    return store.load(run.name)


@pytest.mark.parametrize("scale", SCALES.values(), ids=str)
def test_every_configuration_fits_the_app(scale):
    app = tomllib.loads((protocol.APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    for target in (*TARGETS, "grid"):
        for run in runs_of(target, scale, Choice()):
            override(app, run.config)


@pytest.mark.parametrize("scale", SCALES.values(), ids=str)
def test_a_name_says_which_run_it_is(scale):
    runs = {run for target in (*TARGETS, "grid") for run in runs_of(target, scale, Choice())}
    by_name = {run.name: run for run in runs}
    assert len(by_name) == len({json.dumps([r.study, r.dataset, r.arm, r.config], sort_keys=True) for r in runs})


def test_tables_hold_all_methods_and_the_controls_first_seed_first():
    runs = runs_of("table1", SCALES["small"], Choice(datasets=["mnist"]))
    assert [run.seed for run in runs] == sorted([0, 1, 2] * 10)
    assert {run.arm for run in runs} == {*METHODS, *CONTROLS}
    assert {run.rounds for run in runs} == {200}
    for run in runs:
        assert run.config["client-weights"] == "uniform"
        assert run.config["class-assignment"] == "random"


def test_a_data_set_where_methods_diverge_has_their_remedies_too():
    arms = {run.arm for run in runs_of("table1", SCALES["small"], Choice(datasets=["femnist"]))}
    remedies = set(REMEDIES["femnist"])
    assert arms == {*METHODS, *CONTROLS} | remedies
    assert not remedies & {*METHODS, *CONTROLS}


def test_the_choice_narrows_the_runs():
    runs = runs_of("table3", SCALES["small"], Choice(["mnist"], ["fedfv"], [7]))
    assert {(run.dataset, run.arm, run.seed) for run in runs} == {("mnist", "fedfv", 7)}
    assert {(run.participation, run.selection) for run in runs} == {
        (share, selection) for share in (0.1, 0.2) for selection in ("uniform", "consensus")
    }


def test_hyperparameters_come_from_the_search_or_else_are_published(monkeypatch, tmp_path):
    monkeypatch.setattr(protocol, "CHOICES", tmp_path / "grid.json")
    assert make_run(TINY, "mnist", "feddyn", 0).config["feddyn-alpha"] == ARMS["feddyn"].published["feddyn-alpha"]
    (tmp_path / "grid.json").write_text('{"mnist": {"feddyn": {"feddyn-alpha": 0.7}}}')
    assert make_run(TINY, "mnist", "feddyn", 0).config["feddyn-alpha"] == 0.7
    assert make_run(SCALES["small"], "cifar10", "feddc", 0).config["feddc-alpha"] == 0.01  # FedDC's authors' on CIFAR


@pytest.mark.parametrize(
    ("arm", "when", "resumed"),
    [
        ("fedcome", "sent", True),
        ("scaffold", "sent", True),
        ("fedcome", "aggregated", True),  # goes on from round 2
        ("scaffold", "aggregated", False),  # its only checkpoint is of a round that was not reported
    ],
)
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(digits, monkeypatch, arm, when, resumed):
    monkeypatch.setattr(engine, "EVERY", 2)
    run = make_run(TINY, "mnist", arm, 0, participation=0.5, selection="consensus")
    undisturbed = execute(run)
    assert len(undisturbed.rounds) == 4
    store.path_of(run.name).unlink()
    trainings = 0

    def stop(self, *args):
        nonlocal trainings
        hooked(self, *args)
        trainings += args[0] == "train" if when == "aggregated" else _train(args[0])
        if trainings == (3 if when == "aggregated" else 4):
            raise KeyboardInterrupt

    hooked = getattr(engine.Traffic, when)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(engine.Traffic, when, stop)
        with pytest.raises(KeyboardInterrupt):
            execute(run)
    assert not store.is_done(run.name)
    again = execute(run)
    assert again.end["resumed"] is resumed
    assert [_without_time(line) for line in again.rounds] == [_without_time(line) for line in undisturbed.rounds]
    assert not (engine.WORK / run.name).exists()


def _train(messages):
    return any(message.metadata.message_type == "train" for message in messages)


def _without_time(line):
    return {key: value for key, value in line.items() if key != "seconds"}


def test_bytes_are_those_of_the_arrays_on_their_way(digits):
    record = execute(make_run(TINY, "mnist", "fedavg", 0))
    model = 4 * (64 * 64 + 64 + 64 * 10 + 10)  # 8×8 digits, float32
    for line in record.rounds:
        # An .npy header of 128 bytes an array, four arrays.
        assert line["bytes_up"] == line["bytes_down"] == 10 * (model + 4 * 128)


def test_losses_are_kept_of_every_client_in_every_round(digits):
    run = make_run(TINY, "mnist", "fedcome", 0, study="losses", participation=0.2)
    record = execute(run)
    for before, line in zip(record.rounds, record.rounds[1:], strict=False):
        assert line["client_losses"].keys() == {str(client) for client in range(10)}
        assert len(line["chosen"]) == 2
        rose = [k for k, loss in line["client_losses"].items() if loss > before["client_losses"][k] + 1e-4]
        assert line["rises"] >= len(rose)
        assert line["rises_of"] == 10
        assert line["rises_unselected"] <= line["rises"]


def test_a_file_that_was_cut_off_is_named(digits):
    path = store.path_of("cut")
    path.parent.mkdir(parents=True)
    path.write_text('{"kind": "run"}\n{"kind": "round"}\n')
    with pytest.raises(ValueError, match=r"cut\.jsonl: expected a run, its rounds and its end"):
        store.load("cut")


def test_a_failed_run_stops_no_other_and_is_named(digits, monkeypatch, capsys):
    class Now:
        def __init__(self, *_, **__):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def submit(self, function, *args, **kwargs):
            future = cli.Future()
            try:
                future.set_result(function(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
            return future

    good = make_run(TINY, "mnist", "fedavg", 0)
    bad = dataclasses.replace(good, config=good.config | {"strategy": "fedsgd"})
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(cli, "ProcessPoolExecutor", Now)
    with pytest.raises(SystemExit, match="1 of 2 runs failed; the others are kept"):
        cli._run_all([bad, good], 1, None, "inline", "cpu", "test")
    assert store.is_done(good.name)
    assert "strategy: expected one of" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        cli._run_all([bad, good], 1, None, "inline", "cpu", "test")
    assert "2 runs, 1 of them done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["table9"], "invalid choice: 'table9'"),
        (["table1", "--datasets", "imagenet"], "invalid choice: 'imagenet'"),
        (["table1", "--datasets", "mnist", "--data", "."], "--data: expected a folder 'mnist' in"),
    ],
)
def test_wrong_arguments_are_named(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert text in capsys.readouterr().err
