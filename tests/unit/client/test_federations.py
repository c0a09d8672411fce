"""Whole federations of ready clients in this process."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from flwr.serverapp.strategy import FedAvg

from fedcome_flwr import FedCOMEStrategy, UpdateStrategy
from fedcome_flwr.client import client_app, model_arrays
from tests.unit.client._federation import STEP, federate, numbers, own_data
from tests.unit.client._models import Tied, bytes_of, examples, linear, normalised, seeded


def changed(model, result):
    return {name for name, array in numbers(result.arrays).items() if not np.array_equal(array, model[name])}


def test_a_resnet_keeps_its_buffers_and_counters():
    torchvision = pytest.importorskip("torchvision", reason="needs the extra torch")

    def resnet():
        return seeded(lambda: torchvision.models.resnet18(num_classes=3))

    def images(context):
        data = examples(8, 3, 32, 32, seed=int(context.node_config["partition-id"]))
        return data, data

    app = client_app(resnet, images, batch_size=4, learning_rate=0.01)
    result = federate(app, model=resnet)
    before = model_arrays(resnet())
    after = numbers(result.arrays)
    assert list(after) == list(before)
    assert {name: (one.shape, one.dtype) for name, one in after.items()} == {
        name: (one.shape, one.dtype) for name, one in before.items()
    }
    counters = [array for name, array in after.items() if name.endswith("num_batches_tracked")]
    assert len(counters) == 20
    assert all(counter.shape == () and counter == 4 for counter in counters)  # 2 rounds of 2 batches each
    assert all(np.isfinite(array).all() for array in after.values())
    assert changed(before, result) == set(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    def model():
        return linear().to(dtype)

    def data(context):
        (inputs, targets), test = own_data(context)
        return (inputs.to(dtype), targets), (test[0].to(dtype), test[1])

    result = federate(client_app(model, data, device="cpu", **STEP), model=model)
    kinds = {array.dtype.name for array in numbers(result.arrays).values()}
    assert kinds == {"float16" if dtype == torch.float16 else "float32"}
    assert changed(model_arrays(model()), result) == {"weight", "bias"}


def test_tied_weights_come_back_equal():
    arrays = numbers(federate(model=Tied).arrays)
    np.testing.assert_array_equal(arrays["first.weight"], arrays["second.weight"])


def test_frozen_layers_are_byte_for_byte_the_same():
    def model():
        network = normalised()
        network[0].requires_grad_(False)
        return network

    result = federate(client_app(model, own_data, weight_decay=0.1, **STEP), model=model)
    assert "0.weight" not in changed(model_arrays(model()), result)
    assert "0.bias" not in changed(model_arrays(model()), result)
    assert "4.weight" in changed(model_arrays(model()), result)


def test_one_client():
    strategy = FedCOMEStrategy(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    result = federate(nodes=1, strategy=strategy)
    assert changed(model_arrays(linear()), result) == {"weight", "bias"}


def test_five_hundred_clients():
    strategy = FedCOMEStrategy(fraction_train=1.0, fraction_evaluate=0.1)
    result = federate(nodes=500, rounds=1, strategy=strategy)
    assert result.train_metrics_clientapp[1]["fedcome-clients"] == 500
    assert changed(model_arrays(linear()), result) == {"weight", "bias"}


def test_both_kinds_of_reply_lead_to_the_same_model():
    model, step = (
        federate(client_app(normalised, own_data, reply=reply, **STEP), model=normalised)
        for reply in ("model", "pseudo-gradient")
    )
    for name, array in numbers(model.arrays).items():
        np.testing.assert_allclose(numbers(step.arrays)[name], array, atol=1e-6)


def test_clients_of_both_kinds_in_one_federation():
    def settings(key, server_round):
        return {"reply": "pseudo-gradient" if key == "1" else "model"}

    mixed = federate(strategy=FedCOMEStrategy(fraction_train=1.0, client_config=settings))
    plain = federate(strategy=FedCOMEStrategy(fraction_train=1.0))
    for name, array in numbers(plain.arrays).items():
        np.testing.assert_allclose(numbers(mixed.arrays)[name], array, atol=1e-6)


def test_flowers_own_strategy_drives_it():
    def run(strategy):
        return federate(strategy=strategy, run_config={"local-epochs": 2})

    theirs, ours = run(FedAvg(fraction_train=1.0)), run(UpdateStrategy(fraction_train=1.0))
    for name, array in numbers(ours.arrays).items():
        np.testing.assert_allclose(numbers(theirs.arrays)[name], array, atol=1e-6)
    assert theirs.train_metrics_clientapp[2]["train-loss"] < theirs.train_metrics_clientapp[1]["train-loss"]
    assert set(theirs.evaluate_metrics_clientapp[2]) == {"loss", "accuracy"}


def test_same_seed_same_bytes():
    def final(seed):
        app = client_app(normalised, own_data, batch_size=4)
        return bytes_of(numbers(federate(app, model=normalised, strategy=FedCOMEStrategy(seed=seed)).arrays))

    assert final(0) == final(0)
    assert final(0) != final(1)
