"""The losses that training reports, of the model as it came and as it leaves."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedcome_flwr.client import model_arrays, train_locally
from tests.unit.client._models import bytes_of, examples, linear, normalised


def test_the_loss_before_training_is_the_received_models_and_changes_no_buffer():
    model, data = normalised(), examples()
    model[1].running_mean += 1
    model[0].eval()
    with torch.no_grad():
        expected = F.cross_entropy(model.eval()(data[0]), data[1]).item()
    model.train()
    model[0].eval()
    before = bytes_of(model_arrays(model))
    result = train_locally(model, data, batch_size=5, learning_rate=0.0)
    assert result.metrics["train-loss"] == pytest.approx(expected)
    assert [module.training for module in model] == [False, True, True, True, True]
    # Training does move the running statistics, once a batch; evaluating twice does not.
    assert result.arrays["1.num_batches_tracked"] == 5
    assert result.arrays["1.num_batches_tracked"].shape == ()
    assert {name for name, array in result.arrays.items() if array.tobytes() != before[name]} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def test_losses_are_means_over_the_examples_and_optional():
    model, data = linear(), examples(7)
    batches = DataLoader(TensorDataset(*data), batch_size=3)
    result = train_locally(model, batches, batch_size=3)
    after = F.cross_entropy(model(data[0]), data[1]).item()
    assert result.metrics["train-loss-after"] == pytest.approx(after)
    assert after < result.metrics["train-loss"]
    bare = train_locally(model, batches, train_loss=False, train_loss_after=False)
    assert set(bare.metrics) == {"num-examples", "step-size-sum"}


def test_loss_batches_bounds_what_the_losses_are_taken_on():
    seen = []

    def loss_fn(outputs, targets):
        if not outputs.requires_grad:
            seen.append(targets.tolist())
        return F.cross_entropy(outputs, targets)

    data = torch.randn(100, 4), torch.arange(100) // 34
    for given in (data, list(DataLoader(TensorDataset(*data), batch_size=10))):
        train_locally(linear(), given, batch_size=10, loss_batches=3, loss_fn=loss_fn)
    tensors_before, tensors_after, *loader = seen
    assert tensors_before == tensors_after
    assert len(tensors_before) == 30
    assert len(set(tensors_before)) == 3  # not the first thirty: data are often sorted by class
    assert [len(batch) for batch in loader] == [10] * 6
