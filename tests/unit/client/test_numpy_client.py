"""The NumPyClient, alone and under Flower's older server."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from fedcome_flwr.client import FedCOMEClient, model_arrays, train_locally
from fedcome_flwr.simulation import run_app
from tests.unit.client._federation import STEP, own_data
from tests.unit.client._models import examples, linear, normalised

TRAIN, TEST = examples(10), examples(5, seed=1)


def client(build=linear, **options):
    return FedCOMEClient(build(), TRAIN, TEST, **STEP | options)


def test_fit_trains_the_received_model():
    received = list(model_arrays(linear(1)).values())
    arrays, count, metrics = client(client_id="a").fit(received, {"server-round": 3, "client-seed": 5})
    expected = train_locally(linear(1), TRAIN, **STEP, server_round=3, seed=5)
    for found, array in zip(arrays, expected.arrays.values(), strict=True):
        np.testing.assert_array_equal(found, array)
    assert count == 10
    assert metrics == expected.metrics | {"client-id": "a", "reply-kind": "model"}


def test_fit_gives_the_pseudo_gradient_on_request():
    parameters = client(normalised).get_parameters({})
    model, _, _ = client(normalised).fit(parameters, {"client-seed": 1})
    step, _, metrics = client(normalised).fit(parameters, {"client-seed": 1, "reply": "pseudo-gradient"})
    assert metrics["reply-kind"] == "pseudo-gradient"
    assert "client-id" not in metrics
    for name, before, after, found in zip(model_arrays(normalised()), parameters, model, step, strict=True):
        buffer = "running" in name or "num_batches" in name
        np.testing.assert_allclose(found, after if buffer else before - after, atol=1e-6)
        assert found.shape == before.shape


def test_evaluate():
    parameters = client().get_parameters({})
    loss, count, metrics = client().evaluate(parameters, {})
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(linear()(TEST[0]), TEST[1]).item())
    assert count == 5
    assert set(metrics) == {"accuracy"}


def test_a_wrong_number_of_arrays():
    with pytest.raises(ValueError, match="parameters: expected the 2 arrays of the model, found 1"):
        client().fit(client().get_parameters({})[:1], {})


def test_a_plain_older_server_drives_it():
    losses, final = [], []

    def server_fn(context):
        def keep(server_round, parameters, config):
            final[:] = parameters
            return 0.0, {}

        def keep_losses(metrics):
            losses.append(sum(one["train-loss"] for _, one in metrics) / len(metrics))
            return {}

        strategy = FedAvg(
            initial_parameters=ndarrays_to_parameters(list(model_arrays(linear()).values())),
            min_fit_clients=3,
            min_available_clients=3,
            evaluate_fn=keep,
            fit_metrics_aggregation_fn=keep_losses,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    def client_fn(context):
        return FedCOMEClient(linear(), *own_data(context), **STEP).to_client()

    run = run_app((ServerApp(server_fn=server_fn), ClientApp(client_fn)), num_supernodes=3)
    assert (run.num_replies, run.num_errors) == (2 * (3 + 3), 0)
    assert losses[1] < losses[0]
    assert [array.shape for array in final] == [(3, 4), (3,)]
