"""Models to arrays and back: names, shapes, types, parts of a model, shared weights."""

import warnings

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn

from fedcome_flwr.client import load_arrays, model_arrays, train_locally
from fedcome_flwr.client.arrays import pseudo_gradient
from tests.unit.client._models import FULL, Tied, bytes_of, examples, linear, normalised


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_arrays_come_back_in_the_models_own_type(dtype):
    model, other = (linear(seed).to(getattr(torch, dtype)) for seed in (0, 1))
    arrays = model_arrays(model)
    assert {array.dtype.name for array in arrays.values()} == {"float32" if dtype == "bfloat16" else dtype}
    load_arrays(other, arrays)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    assert other.weight.dtype == model.weight.dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_models_train(dtype):
    model = linear().to(getattr(torch, dtype))
    inputs, targets = examples()
    before = model_arrays(model)
    result = train_locally(model, (inputs.to(model.weight.dtype), targets), device="cpu", **FULL)
    assert result.metrics["train-loss-after"] < result.metrics["train-loss"]
    assert result.arrays["weight"].dtype == before["weight"].dtype
    assert model.weight.dtype == getattr(torch, dtype)


def test_arrays_are_copies_in_the_models_order_with_their_shapes():
    model = normalised()
    arrays = model_arrays(model)
    assert list(arrays) == list(model.state_dict())
    assert arrays["1.num_batches_tracked"].shape == ()
    assert arrays["1.num_batches_tracked"].dtype == np.int64
    before = bytes_of(arrays)
    with torch.no_grad():
        model[0].weight.add_(1)
    assert bytes_of(arrays) == before


def test_loading_takes_any_memory_without_a_warning():
    arrays = model_arrays(linear(1))
    arrays["weight"] = np.asfortranarray(arrays["weight"])[::-1][::-1]
    arrays["bias"].flags.writeable = False
    model = linear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_arrays(model, arrays)
    assert bytes_of(model_arrays(model)) == bytes_of(model_arrays(linear(1)))


def test_wrong_arrays_are_named_and_nothing_is_loaded():
    model = linear()
    before = bytes_of(model_arrays(model))
    good = {"weight": np.ones((3, 4), dtype="float32")}
    with pytest.raises(ValueError, match=r"array 'head': expected one of the model's 2 names \('weight', 'bias'\)"):
        load_arrays(model, good | {"head": np.zeros(3)})
    with pytest.raises(ValueError, match=r"array 'bias': expected shape \(3,\), found \(4,\)"):
        load_arrays(model, good | {"bias": np.zeros(4)})
    with pytest.raises(ValueError, match="array 'bias': expected a real type such as float32, found complex128"):
        load_arrays(model, good | {"bias": np.zeros(3, dtype=complex)})
    assert bytes_of(model_arrays(model)) == before
    with pytest.raises(ValueError, match="array 'head': expected one of"):
        model_arrays(model, ["head"])


def test_a_part_of_the_model():
    model = linear()
    weight = model_arrays(model)["weight"]
    load_arrays(model, {"bias": np.full(3, 7.0)})
    np.testing.assert_array_equal(model_arrays(model)["weight"], weight)
    assert model.bias.tolist() == [7.0] * 3
    assert list(train_locally(model, examples(), names=["bias"], **FULL).arrays) == ["bias"]


def test_tied_weights_stay_tied_and_move_together():
    model = Tied()
    arrays = model_arrays(model)
    assert {"first.weight", "second.weight"} < set(arrays)
    load_arrays(model, {name: array + 1 for name, array in arrays.items()})
    assert model.second.weight is model.first.weight
    np.testing.assert_allclose(model.first.weight.detach(), arrays["first.weight"] + 1)
    load_arrays(model, {"second.weight": arrays["first.weight"]})
    np.testing.assert_array_equal(model.first.weight.detach(), arrays["first.weight"])
    trained = train_locally(model, examples(classes=4), **FULL).arrays
    np.testing.assert_array_equal(trained["first.weight"], trained["second.weight"])
    assert not np.array_equal(trained["first.weight"], arrays["first.weight"])
    assert model.second.weight is model.first.weight


def test_frozen_layers_do_not_move():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    received = model_arrays(model)
    step = pseudo_gradient(received, train_locally(model, examples(), weight_decay=0.1, momentum=0.9).arrays)
    assert list(step) == list(received)
    assert not step["0.weight"].any()
    assert not step["0.bias"].any()
    assert step["1.weight"].any()
    with pytest.raises(ValueError, match="model: expected a parameter with requires_grad, found none"):
        train_locally(model.requires_grad_(False), examples())


def test_a_pseudo_gradient_has_differences_for_parameters_and_values_for_buffers():
    model = normalised()
    received = model_arrays(model)
    trained = train_locally(model, examples(), batch_size=5).arrays
    step = pseudo_gradient(received, trained)
    for name, array in trained.items():
        expected = array if name.startswith("1.") and "weight" not in name and "bias" not in name else None
        np.testing.assert_array_equal(step[name], received[name] - array if expected is None else expected)
        assert step[name].dtype == array.dtype
        assert step[name].shape == array.shape
