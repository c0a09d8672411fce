"""The Ray path without Ray: what it refuses, what it sets and puts back, what travels to the clients."""

import logging
import os
import pickle
import signal
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedcome_flwr.simulation import AppError, flower_private, ray_backend, run_app
from fedcome_flwr.simulation.ray_client import RayClientApp
from fedcome_flwr.simulation.ray_surroundings import ray_surroundings
from tests.unit.simulation.apps import adding_client, write_app, zeros

RAY = {"backend": "ray"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "rai"}, "backend must be one of inline, ray; got 'rai'"),
        ({"client_cpus": 1}, "client_cpus needs backend 'ray'"),
        ({"client_gpus": 0.5}, "client_gpus needs backend 'ray'"),
        (RAY | {"debug": True}, "debug needs backend 'inline'"),
        (RAY | {"client_cpus": 0}, "client_cpus must be above 0, got 0"),
        (RAY | {"client_cpus": float("nan")}, "client_cpus must be above 0, got nan"),
        (RAY | {"client_gpus": -1}, "client_gpus must be 0 or more, got -1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(options, text, monkeypatch):
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: name)
    with pytest.raises(AppError, match=text):
        run_app((ServerApp(), ClientApp()), **options)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: None)
    with pytest.raises(AppError, match=r'pip install "fedcome-flwr\[ray\]"'):
        run_app((ServerApp(), ClientApp()), backend="ray")


def test_a_ray_that_runs_already_is_left_alone(monkeypatch):
    """Flower would use it and shut it down."""
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(AppError, match=r"call ray.shutdown\(\) first"):
        run_app((ServerApp(), ClientApp()), backend="ray")


def engine(monkeypatch, run):
    """Replace Flower's engine."""
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: name)
    monkeypatch.setattr(ray_backend, "run_simulation", run)


def test_settings_reach_flowers_engine(monkeypatch, tmp_path):
    seen = {}

    def run(server_app, client_app, num_supernodes, backend_config):
        seen.update(number=num_supernodes, **backend_config["client_resources"])
        raise ValueError("enough")

    engine(monkeypatch, run)
    with pytest.raises(RuntimeError, match="simulation engine failed: enough"):
        run_app(write_app(tmp_path / "app"), num_supernodes=7, client_cpus=0.5, client_gpus=0.25, **RAY)
    assert (seen["number"], seen["num_cpus"], seen["num_gpus"]) == (7, 0.5, 0.25)


def test_an_engine_that_fails_tells_the_first_cause_and_frees_the_serverapp(monkeypatch):
    """Flower's engine leaves the ServerApp waiting, an hour for each message, and wraps the reason twice."""
    waiting = threading.Event()
    threads = []

    class Grid:
        def get_node_ids(self):
            waiting.set()
            return []

    def run(server_app, client_app, num_supernodes, backend_config):
        context = Context(1, 1, {}, RecordDict(), {})
        threads.append(threading.Thread(target=server_app, args=(Grid(), context)))
        threads[0].start()
        waiting.wait(5)
        try:
            raise ValueError("no client fits")
        except ValueError as error:
            raise RuntimeError("An error was encountered. Ending simulation.") from error

    engine(monkeypatch, run)
    with pytest.raises(RuntimeError, match="simulation engine failed: no client fits"):
        run_app((ServerApp(), ClientApp()), backend="ray")
    assert not threads[0].is_alive()


@pytest.mark.parametrize("error", [OSError("the disk is full"), SystemExit(3)])
def test_what_the_serverapp_raises_comes_through(monkeypatch, error):
    server = ServerApp()

    @server.main()
    def main(grid, context):
        raise error

    def run(server_app, client_app, num_supernodes, backend_config):
        grid = SimpleNamespace(get_node_ids=lambda: [1, 2])
        thread = threading.Thread(target=server_app, args=(grid, Context(1, 1, {}, RecordDict(), {})))
        thread.start()
        thread.join()

    engine(monkeypatch, run)
    with pytest.raises(type(error)) as caught:
        run_app((server, ClientApp()), backend="ray")
    assert caught.value is error


def test_everything_around_is_as_before_afterwards(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")  # the user's own setting stays
    before, handler, filters = dict(os.environ), signal.getsignal(signal.SIGTERM), warnings.filters[:]
    with ray_surroundings():
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
        assert os.path.isdir(folder := os.environ["RAY_TMPDIR"])
        os.environ["PYTHONPATH"] = "/as/flower/does"
        signal.signal(signal.SIGTERM, lambda *_: None)
        flower_private.TaskIdentity.run_id = 5
    assert dict(os.environ) == before
    assert (signal.getsignal(signal.SIGTERM), warnings.filters) == (handler, filters)
    assert not os.path.exists(folder)
    assert not flower_private.identity_is_set()
    assert logging.getLogger("flwr").filters == []


@pytest.mark.parametrize(
    ("path", "function", "text", "shown"),
    [
        ("flwr/server/superlink/fleet/vce/vce_api.py", "worker", "pages of traceback", False),
        ("flwr/simulation/ray_transport/ray_actor.py", "submit", "removed actor", False),
        ("flwr/supercore/logger.py", "warn_deprecated_feature", "The `run_simulation` function is deprecated", False),
        ("flwr/supercore/logger.py", "warn_deprecated_feature", "The `client_fn` is deprecated", True),
        ("flwr/serverapp/strategy/fedavg.py", "aggregate_train", "Received 9 results", True),
        ("fedcome_flwr/server/round_log.py", "log_round", "fedcome round 1", True),
    ],
)
def test_flowers_log_says_what_nothing_else_says(path, function, text, shown):
    logger = logging.getLogger("flwr")
    record = logger.makeRecord("flwr", logging.ERROR, f"/x/{path}", 1, text, (), None, function)
    with ray_surroundings():
        assert bool(logger.filter(record)) is shown


def called(app: RayClientApp, context: Context, kind: str = "train") -> Message:
    with flower_private.server_identity():
        message = Message(RecordDict({"arrays": zeros(2)}), 5, kind)
        flower_private.number_message(message, "m")
    return pickle.loads(pickle.dumps(app))(message, context)


class Picklable(ClientApp):
    """Ray pickles functions within functions too; pickle, used here, does not."""

    def __call__(self, message, context):
        if "broken" in context.run_config:
            raise SystemExit("no data")
        context.run_config["changed"] = True
        return adding_client()(message, context)


def test_clients_get_the_run_config_and_keep_their_state():
    context = Context(1, 5, {"partition-id": 3}, RecordDict(), {})
    app = RayClientApp(Picklable(), {"lr": 1})
    replies = [called(app, context) for _ in range(2)]
    assert replies[1].content["metrics"]["calls"] == 2
    assert context.run_config == {}  # Flower refuses a context that comes back with another one


def test_a_client_that_raises_or_exits_answers_with_its_exception_first():
    context = Context(1, 5, {"partition-id": 3}, RecordDict({"kept": MetricRecord({"n": 1})}), {})
    reply = called(RayClientApp(Picklable(), {"broken": True}), context)
    assert reply.error.reason.splitlines()[0] == "SystemExit: no data"
    assert reply.error.code == flower_private.CLIENT_APP_RAISED_EXCEPTION
    assert context.state["kept"]["n"] == 1
