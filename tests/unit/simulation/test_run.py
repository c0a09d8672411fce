import random
import sys

import pytest
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcome_flwr import FedCOMEStrategy
from fedcome_flwr.simulation import RunObserver, run_app
from tests.unit.simulation.apps import PYPROJECT, adding_client, write_app, zeros


def server(*strategies: Strategy, **options) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid, context):
        for strategy in strategies:
            strategy.start(grid=grid, initial_arrays=zeros(2), **options)

    return app


def final_bytes(run) -> bytes:
    return run.results[-1].arrays["w"].data


def test_an_app_folder_runs(tmp_path, capsys):
    run = run_app(write_app(tmp_path / "app"))
    (result,) = run.results
    assert set(result.train_metrics_clientapp) == {1, 2}
    assert result.evaluate_metrics_serverapp[2]["global-loss"] == pytest.approx(1 / 3)
    assert result.arrays["w"].numpy().shape == (3,)  # the nested default model.size
    assert (run.num_replies, run.num_errors, run.first_error) == (
        8,
        0,
        None,
    )  # two clients, as Flower's default
    assert run.context.state["note"]["seed"] == 0
    assert 0 < run.seconds.to_first_round < run.seconds.total
    assert capsys.readouterr().out == "name tiny\n"


def test_a_pair_of_apps_runs_with_its_whole_config():
    seen = {}
    app = ServerApp()

    @app.main()
    def main(grid, context):
        seen.update(context.run_config, nodes=len(list(grid.get_node_ids())))

    run = run_app((app, adding_client()), num_supernodes=3, run_config={"a": 1, "b": {"c": 2.0}})
    assert seen == {"a": 1, "b.c": 2.0, "nodes": 3}
    assert (run.results, run.num_replies, run.seconds.to_first_round) == ((), 0, None)


def test_run_config_changes_reach_server_and_clients(tmp_path):
    changes = {"num-server-rounds": 1, "lr": 0, "model": {"size": 5}}
    run = run_app(write_app(tmp_path / "app"), num_supernodes=4, run_config=changes)
    weights = run.results[0].arrays["w"].numpy()
    assert weights.shape == (5,)
    assert len(set(weights)) == 1  # lr 0: no noise


@pytest.mark.parametrize(("options", "expected"), [("options.num-supernodes = 5", 5), ("", 2)])
def test_number_of_supernodes_comes_from_the_older_federations(tmp_path, options, expected):
    federations = f'\n[tool.flwr.federations]\ndefault = "local"\n[tool.flwr.federations.local]\n{options}\n'
    folder = write_app(tmp_path / "app", pyproject=PYPROJECT + federations)
    seen = []

    class Look(RunObserver):
        def opened(self, num_supernodes, run_config):
            seen.append((num_supernodes, run_config["lr"]))

    run_app(folder, observer=Look())
    run_app(folder, num_supernodes=3, observer=Look())
    assert seen == [(expected, 0.5), (3, 0.5)]


def test_one_seed_one_result(tmp_path):
    folder = write_app(tmp_path / "app")
    first, same, other = (run_app(folder, num_supernodes=10, seed=seed) for seed in (1, 1, 2))
    assert final_bytes(first) == final_bytes(same)
    assert final_bytes(first) != final_bytes(other)
    assert first.context.state["note"]["seed"] == 1  # the app's own key


def test_the_apps_seed_key_can_be_set_apart(tmp_path):
    run = run_app(write_app(tmp_path / "app"), seed=1, run_config={"seed": 5})
    assert run.context.state["note"]["seed"] == 5


def test_torch_is_seeded_as_soon_as_the_app_imports_it(tmp_path, monkeypatch):
    """With a stand-in for PyTorch; else a model made while the app is imported would be a random one."""
    (tmp_path / "torch.py").write_text("seeds = []\ndef manual_seed(seed):\n    seeds.append(seed)\n")
    folder = write_app(tmp_path / "app")
    (folder / "tiny" / "task.py").write_text("import torch\nNAME = list(torch.seeds)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # so that the real one, or none, comes back in the end
    monkeypatch.delitem(sys.modules, "torch")
    finders = sys.meta_path[:]
    for _ in range(2):
        run_app(folder, seed=3)
        assert sys.meta_path == finders
    run_app(folder)
    assert sys.modules["torch"].seeds == [3, 3, 3, 3]  # at its import and the ServerApp's start, twice


def test_python_and_numpy_are_seeded():
    run_app((server(), adding_client()), seed=3)
    assert random.random() == random.Random(3).random()


def test_apps_with_the_same_package_name_do_not_mix(tmp_path, capsys):
    folders = [write_app(tmp_path / name, name) for name in ("a", "b")]
    for folder in [*folders, folders[0]]:
        run_app(folder)
    assert capsys.readouterr().out == "name a\nname b\nname a\n"


def test_an_edited_app_runs_as_edited(tmp_path, capsys):
    folder = write_app(tmp_path / "app", "one")
    run_app(folder)
    (folder / "tiny" / "task.py").write_text("NAME = 'two'\n")  # within the same second
    run_app(folder)
    assert capsys.readouterr().out == "name one\nname two\n"


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    folder = write_app(tmp_path / "app")
    mine = type(sys)("tiny")  # as if a notebook had imported its own
    monkeypatch.setitem(sys.modules, "tiny", mine)
    files, path, hooks = sorted(folder.rglob("*")), sys.path[:], sys.path_hooks[:]
    starts = {cls: vars(cls).get("start") for cls in (Strategy, FedAvg)}
    aggregates = {name: vars(FedAvg)[name] for name in ("aggregate_train", "aggregate_evaluate")}
    run_app(folder)
    assert sys.modules["tiny"] is mine
    assert [name for name in sys.modules if name.startswith("tiny.")] == []
    assert sorted(folder.rglob("*")) == files  # no __pycache__ either
    assert (sys.path, sys.path_hooks) == (path, hooks)
    assert starts == {cls: vars(cls).get("start") for cls in (Strategy, FedAvg)}
    assert aggregates == {name: vars(FedAvg)[name] for name in aggregates}


def test_modules_beside_the_app_are_the_folders_own(tmp_path, monkeypatch):
    """A flat app, `serverapp = "server:app"`, whose helper has the name of a loaded module."""
    folder = tmp_path / "flat"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        PYPROJECT.replace("tiny.server_app", "server").replace("tiny.client_app", "client")
    )
    (folder / "helper.py").write_text("NAME = 'right'\n")
    (folder / "client.py").write_text("from flwr.clientapp import ClientApp\napp = ClientApp()\n")
    (folder / "server.py").write_text(
        "from flwr.app import ConfigRecord\nfrom flwr.serverapp import ServerApp\nfrom helper import NAME\n"
        "app = ServerApp()\n@app.main()\ndef main(grid, context):\n"
        "    context.state['x'] = ConfigRecord({'name': NAME})\n"
    )
    wrong = type(sys)("helper")
    wrong.NAME = "wrong"
    monkeypatch.setitem(sys.modules, "helper", wrong)
    assert run_app(folder).context.state["x"]["name"] == "right"
    assert sys.modules["helper"] is wrong


def test_any_working_directory_will_do(tmp_path, monkeypatch):
    folder = write_app(tmp_path / "app")
    monkeypatch.chdir(folder)
    assert run_app(".").num_errors == 0
    monkeypatch.chdir(folder / "tiny")
    assert run_app("..").num_errors == 0


def test_client_errors_are_counted_and_the_first_kept(tmp_path):
    run = run_app(write_app(tmp_path / "app"), num_supernodes=4, run_config={"fail": "clients"})
    assert (run.num_replies, run.num_errors) == (12, 4)
    assert run.first_error.startswith("ValueError: no data at tiny")


def test_debug_ends_the_run_at_the_clients_exception(tmp_path):
    with pytest.raises(ValueError, match="no data at tiny") as caught:
        run_app(write_app(tmp_path / "app"), run_config={"fail": "clients"}, debug=True)
    assert caught.traceback[-1].path.name == "client_app.py"


def test_an_exception_of_the_server_comes_through(tmp_path):
    with pytest.raises(RuntimeError, match="the disk is full") as caught:
        run_app(write_app(tmp_path / "app"), run_config={"fail": "server"})
    assert caught.traceback[-1].path.name == "server_app.py"


def test_an_exception_of_the_server_tells_of_failed_clients():
    class Strict(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise RuntimeError("not one reply")

    broken = adding_client()
    broken._registered_funcs["train.default"] = lambda message, context: 1 / 0
    with pytest.raises(RuntimeError, match="not one reply") as caught:
        run_app((server(Strict()), broken))
    assert caught.value.__notes__[0].startswith("2 of 2 client replies were errors, the first: ZeroDivisionError")


class Overridden(FedAvg):
    def start(self, *args, **kwargs):
        result = super().start(*args, **kwargs)
        result.train_metrics_clientapp[99] = MetricRecord({"outer": 1})
        return result


def test_each_start_is_recorded_once():
    run = run_app((server(FedAvg(), Overridden(), num_rounds=1), adding_client()))
    assert [list(result.train_metrics_clientapp) for result in run.results] == [[1], [1, 99]]


def test_the_observer_hears_of_rounds_and_metrics():
    class Diary(RunObserver):
        def __init__(self):
            self.lines = []

        def started(self, num_rounds):
            self.lines.append(("started", num_rounds))

        def aggregated(self, phase, server_round, metrics):
            self.lines.append((phase, server_round, *metrics))

        def ended(self, result):
            self.lines.append(("ended", len(result.train_metrics_clientapp)))

    def evaluate(server_round, arrays):
        return MetricRecord({"global": 1.0})

    diary = Diary()
    run_app((server(Overridden(), num_rounds=1, evaluate_fn=evaluate), adding_client()), observer=diary)
    assert diary.lines == [
        ("started", 1),
        ("server", 0, "global"),
        ("train", 1, "calls"),
        ("evaluate", 1, "accuracy"),
        ("server", 1, "global"),
        ("ended", 2),
    ]


def test_a_phase_in_which_everybody_failed_is_named(tmp_path):
    run = run_app(write_app(tmp_path / "app"), run_config={"fail": "clients"})
    assert run.failed_phases == ("train",)
    assert run.num_errors < run.num_replies  # evaluation worked
    assert run_app(tmp_path / "app").failed_phases == ()


@pytest.mark.parametrize("debug", [False, True])
def test_apps_that_do_not_say_who_they_are_are_not_at_fault(debug):
    strategy = FedCOMEStrategy()  # asks them
    run = run_app((server(strategy, num_rounds=1), adding_client()), num_supernodes=3, debug=debug)
    assert (run.num_replies, run.num_errors, run.first_error, run.failed_phases) == (6, 0, None, ())
