"""Apps of the older kind: NumPyClient, ServerAppComponents."""

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from fedcome_flwr.simulation import run_app

FINAL: list[np.ndarray] = []


class Adder(NumPyClient):
    def __init__(self, partition: int, fails: bool) -> None:
        self.partition = partition
        self.fails = fails

    def fit(self, parameters, config):
        if self.fails:
            raise ValueError(f"no data at {self.partition}")
        return [p + self.partition for p in parameters], 1, {"x": 1.0}

    def evaluate(self, parameters, config):
        return float(parameters[0][0]), 1, {"accuracy": 0.5}


def apps(fails: bool = False) -> tuple[ServerApp, ClientApp]:
    def server_fn(context):
        def keep(server_round, parameters, config):
            FINAL[:] = parameters
            return 0.0, {}

        strategy = FedAvg(
            initial_parameters=ndarrays_to_parameters([np.zeros(2)]),
            min_available_clients=4,
            min_fit_clients=4,
            evaluate_fn=keep,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    return (
        ServerApp(server_fn=server_fn),
        ClientApp(lambda context: Adder(context.node_config["partition-id"], fails).to_client()),
    )


def test_a_legacy_app_runs():
    run = run_app(apps(), num_supernodes=4)
    np.testing.assert_allclose(FINAL[0], 2 * np.mean([0, 1, 2, 3]))
    assert (run.num_replies, run.num_errors, run.results) == (2 * (4 + 4), 0, ())


def test_failing_legacy_clients_are_counted():
    run = run_app(apps(fails=True), num_supernodes=4)
    assert (run.num_replies, run.num_errors) == (16, 8)
    assert run.first_error.startswith("ValueError: no data at ")


def test_debug_ends_the_run_although_the_legacy_server_goes_on():
    with pytest.raises(ValueError, match="no data at"):
        run_app(apps(fails=True), num_supernodes=4, debug=True)
