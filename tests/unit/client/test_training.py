"""Local training: the steps are SGD's, the numbers are what they say, and nothing else changes."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedcome_flwr.client import train_locally
from tests.unit.client._models import FULL, bytes_of, examples, linear, normalised


def gradients(weights, inputs, targets):
    tracked = [one.clone().requires_grad_() for one in weights]
    return torch.autograd.grad(F.cross_entropy(F.linear(inputs, *tracked), targets), tracked)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_are_those_of_sgd(clip):
    inputs, targets = examples()
    model = linear()
    weights = [one.detach().clone() for one in model.parameters()]
    velocity = [torch.zeros_like(one) for one in weights]
    rate, clipped = 0.3 * 0.9**2, 0
    for _ in range(4):
        steps = gradients(weights, inputs, targets)
        norm = torch.sqrt(sum(one.square().sum() for one in steps))
        if clip and norm > clip:
            clipped += 1
            steps = [one * clip / norm for one in steps]
        for one, speed, step in zip(weights, velocity, steps, strict=True):
            speed.mul_(0.5).add_(step + 0.01 * one)
            one.sub_(rate * speed)
    result = train_locally(
        model,
        (inputs, targets),
        learning_rate=0.3,
        learning_rate_decay=0.9,
        server_round=2,
        momentum=0.5,
        weight_decay=0.01,
        batch_size=None,
        local_epochs=4,
        max_grad_norm=clip,
    )
    for found, expected in zip(result.arrays.values(), weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert result.metrics["step-size-sum"] == pytest.approx(4 * rate)
    assert result.metrics.get("clipped-steps") == (clipped if clip else None)
    assert not clip or clipped


def test_numbers_of_examples_and_steps():
    def metrics(data, **settings):
        return train_locally(linear(), data, **FULL | settings).metrics

    data = examples(23)
    batches = DataLoader(TensorDataset(*data), batch_size=10)
    assert metrics(data, batch_size=5, local_epochs=2)["step-size-sum"] == pytest.approx(0.1 * 5 * 2)
    assert metrics(data, batch_size=0, local_epochs=2)["step-size-sum"] == pytest.approx(0.1 * 2)
    assert metrics(batches, batch_size=5, local_epochs=2)["step-size-sum"] == pytest.approx(0.1 * 3 * 2)
    assert metrics(batches, batch_size=0, local_epochs=2)["step-size-sum"] == pytest.approx(0.1 * 2)
    assert metrics(batches, local_epochs=2)["num-examples"] == metrics(data)["num-examples"] == 23


def test_an_epoch_uses_every_example_once_in_a_new_order():
    seen = []

    class Spy(nn.Linear):
        def forward(self, inputs):
            seen.extend(inputs[:, 0].tolist())
            return super().forward(inputs)

    inputs = torch.arange(23.0).reshape(23, 1)
    data = inputs, torch.zeros(23, dtype=torch.int64)
    train_locally(Spy(1, 2), data, batch_size=5, local_epochs=2, train_loss=False, train_loss_after=False)
    assert sorted(seen[:23]) == sorted(seen[23:]) == inputs[:, 0].tolist()
    assert seen[:23] != seen[23:]


def test_a_loader_of_everything_is_the_full_batch():
    data = examples()
    batches = list(DataLoader(TensorDataset(*data), batch_size=10))
    one, other = (train_locally(linear(), given, **FULL) for given in (data, batches))
    assert bytes_of(one.arrays) == bytes_of(other.arrays)
    assert one.metrics == pytest.approx(other.metrics)


def shuffled():
    return DataLoader(TensorDataset(*examples()), batch_size=5, shuffle=True)


@pytest.mark.parametrize("data", [examples(), shuffled()], ids=["tensors", "shuffling loader"])
def test_the_seed_fixes_every_byte_and_nothing_global(data):
    def trained(seed, **settings):
        result = train_locally(normalised(), data, batch_size=5, local_epochs=2, seed=seed, **settings)
        return bytes_of(result.arrays), result.metrics

    torch.manual_seed(9)
    expected = torch.rand(2).tolist()
    torch.manual_seed(9)
    first = trained(1)
    assert torch.rand(2).tolist() == expected
    assert trained(1) == first
    assert trained(1, train_loss=False, train_loss_after=False)[0] == first[0]
    assert trained(2)[0] != first[0]


def test_amp_without_a_gpu_is_bfloat16():
    seen = set()

    def loss_fn(outputs, targets):
        seen.add((outputs.requires_grad, outputs.dtype))
        return F.cross_entropy(outputs.float(), targets)

    data = examples()
    result = train_locally(linear(), data, device="cpu", amp=True, loss_fn=loss_fn, **FULL)
    assert seen == {(True, torch.bfloat16), (False, torch.float32)}
    assert result.metrics["skipped-steps"] == 0
    assert result.metrics["step-size-sum"] == pytest.approx(0.1)
    plain = train_locally(linear(), data, device="cpu", **FULL)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(result.arrays[name], array, atol=1e-2)


def test_a_step_that_amp_skips_does_not_count(monkeypatch):
    class Overflowing:
        """A GradScaler whose first step overflows, which shows in a smaller scale."""

        def __init__(self, *_, **options):
            self.steps = 0

        def scale(self, loss):
            return loss

        def unscale_(self, optimizer):
            pass

        def step(self, optimizer):
            self.steps += 1
            if self.steps > 1:
                optimizer.step()

        def update(self):
            pass

        def get_scale(self):
            return 0.5 if self.steps else 1.0

    plain = train_locally(linear(), examples(), **FULL, local_epochs=2)
    monkeypatch.setattr(torch.amp, "GradScaler", Overflowing)
    result = train_locally(linear(), examples(), device="cpu", amp=True, **FULL, local_epochs=3)
    assert result.metrics["skipped-steps"] == 1
    assert result.metrics["step-size-sum"] == plain.metrics["step-size-sum"] == pytest.approx(0.2)


def test_a_diverged_training_ends_and_shows():
    result = train_locally(linear(), examples(), batch_size=5, learning_rate=1e38, local_epochs=3, weight_decay=1e3)
    assert np.isfinite(result.metrics["train-loss"])
    assert not np.isfinite(result.metrics["train-loss-after"])


def test_a_gradient_that_was_there_before_does_not_count():
    model = linear()
    model(torch.ones(1, 4)).sum().backward()
    assert bytes_of(train_locally(model, examples(), **FULL).arrays) == bytes_of(
        train_locally(linear(), examples(), **FULL).arrays
    )


def test_another_loss_and_no_gradient_left_behind():
    model = nn.Linear(4, 1)
    inputs = torch.randn(6, 4)
    result = train_locally(model, (inputs, inputs.sum(1, keepdim=True)), loss_fn=F.mse_loss, **FULL)
    assert result.metrics["train-loss-after"] < result.metrics["train-loss"]
    assert all(one.grad is None for one in model.parameters())
