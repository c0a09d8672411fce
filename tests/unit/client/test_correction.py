"""The local rule in local training."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn

from fedcome_flwr.client import model_arrays, train_locally
from fedcome_flwr.core import Correction
from tests.unit.client._models import FULL, Tied, bytes_of, examples, linear

DATA = examples(12)


def quadratic(start: float = 5.0) -> nn.Module:
    """A model whose output is its one weight vector, whatever the input."""
    model = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(start)
    return model


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.sum(torch.square(outputs - targets))


IDENTITY = torch.eye(3, dtype=torch.float64), torch.full((3, 3), 1.0, dtype=torch.float64)
STEPS = {"batch_size": 0, "learning_rate_decay": 1.0, "weight_decay": 0.0, "loss_fn": half_square}


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_fedprox_finds_the_minimiser_of_its_proximal_objective(mu):
    """½‖w − 1‖² + µ/2 ‖w − w0‖² is least at (1 + µ w0) / (1 + µ)."""
    result = train_locally(
        quadratic(5.0), IDENTITY, correction=Correction(pull=mu), learning_rate=0.2, local_epochs=300, **STEPS
    )
    np.testing.assert_allclose(result.arrays["weight"], (1 + mu * 5) / (1 + mu), rtol=1e-9)
    assert result.metrics["distance-moved"] == pytest.approx(3 * (5 - (1 + mu * 5) / (1 + mu)), rel=1e-9)


def test_drift_moves_the_point_that_clients_are_pulled_to_and_shift_bends_the_gradient():
    drift, shift = np.full((3, 3), 2.0), np.full((3, 3), 0.5)
    correction = Correction(1.0, {"weight": drift}, {"weight": shift})
    result = train_locally(
        quadratic(5.0), IDENTITY, correction=correction, learning_rate=0.2, local_epochs=300, **STEPS
    )
    # w − 1 + (w − 5 + 2) + 0.5 = 0
    np.testing.assert_allclose(result.arrays["weight"], (1 + 3 - 0.5) / 2, rtol=1e-9)


def test_an_empty_correction_changes_no_byte():
    plain = train_locally(linear(), DATA, **FULL)
    empty = train_locally(linear(), DATA, correction=Correction(), **FULL)
    assert bytes_of(plain.arrays) == bytes_of(empty.arrays)
    assert "distance-moved" not in plain.metrics
    assert empty.metrics["distance-moved"] > 0


def test_clipping_comes_after_the_correction():
    """A huge shift is part of what the bound holds for."""
    correction = Correction(shift={"weight": np.full((3, 4), 1e3, np.float32)})
    before = model_arrays(linear())
    result = train_locally(linear(), DATA, correction=correction, max_grad_norm=0.5, **FULL)
    moved = sum(float(np.sum(np.square(before[name] - result.arrays[name]))) for name in before)
    assert np.sqrt(moved) == pytest.approx(FULL["learning_rate"] * 0.5, rel=1e-3)
    assert result.metrics["clipped-steps"] == 1


def test_tied_weights_are_corrected_once_under_any_of_their_names():
    data = examples(12, 4, classes=4)
    shift = np.full((4, 4), 0.3, np.float32)
    torch.manual_seed(0)
    start = Tied().state_dict()
    found = []
    for names in (["first.weight"], ["second.weight"], ["first.weight", "second.weight"]):
        model = Tied()
        model.load_state_dict(start)
        correction = Correction(shift=dict.fromkeys(names, shift))
        found.append(train_locally(model, data, correction=correction, **FULL).arrays["first.weight"])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_frozen_and_unused_parameters_stay():
    model = linear()
    model.bias.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(2))
    before = model_arrays(model)
    correction = Correction(1.0, shift={"bias": np.ones(3, np.float32), "unused": np.ones(2, np.float32)})
    after = train_locally(model, DATA, correction=correction, **FULL).arrays
    np.testing.assert_array_equal(after["bias"], before["bias"])
    np.testing.assert_array_equal(after["unused"], before["unused"])
    assert not np.array_equal(after["weight"], before["weight"])


def test_momentum_with_control_variates_warns():
    correction = Correction(shift={"weight": np.zeros((3, 4), np.float32)})
    with pytest.warns(UserWarning, match=r"momentum=0\.9 with control variates"):
        train_locally(linear(), DATA, correction=correction, momentum=0.9, **FULL)
    train_locally(linear(), DATA, correction=Correction(pull=0.1), momentum=0.9, **FULL)  # no control: no warning
