"""Where training runs."""

import logging

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn

from fedcome_flwr.client import device as devices
from fedcome_flwr.client import train_locally
from tests.unit.client._models import FULL, examples, linear


@pytest.fixture
def where(monkeypatch):
    """The devices that training passes through, with one GPU in sight that is none."""
    seen = []

    class Spy(nn.Linear):
        def to(self, device):
            seen.append(str(device))
            return self

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return Spy(4, 3), seen


def test_the_device_can_be_chosen_and_the_model_comes_back(where):
    model, seen = where
    train_locally(model, examples(), device="cpu", **FULL)
    assert seen == ["cpu", "cpu"]


def test_the_gpu_is_the_default_where_there_is_one(where, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Test 3000")
    devices._announce.cache_clear()
    assert devices.choose_device() == devices.choose_device("") == torch.device("cuda")
    assert devices.choose_device("cuda:0") == torch.device("cuda:0")
    devices._announce.cache_clear()
    with pytest.raises(ValueError, match="device: expected one of the 1 GPUs that this process sees, found 'cuda:1'"):
        devices.choose_device("cuda:1")


def test_without_a_gpu_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert devices.choose_device() == torch.device("cpu")
    with pytest.raises(ValueError, match="device: expected one of the 0 GPUs"):
        devices.choose_device("cuda")
    with pytest.raises(ValueError, match="device: expected a name such as 'cuda', 'cuda:1' or 'cpu', found 'gpu'"):
        devices.choose_device("gpu")


def test_the_log_names_the_device_once(caplog):
    devices._announce.cache_clear()
    with caplog.at_level(logging.INFO, logger="flwr"):
        for _ in range(3):
            train_locally(linear(), examples(), device="cpu", **FULL)
    assert [record.message for record in caplog.records] == ["fedcome: local training runs on cpu"]


def test_the_model_comes_back_after_an_error():
    class Faulty(nn.Linear):
        def forward(self, inputs):
            raise RuntimeError("out of memory")

    model = Faulty(4, 3).eval()
    with pytest.raises(RuntimeError, match="out of memory"):
        train_locally(model, examples(), **FULL)
    assert not model.training


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("amp", [False, True])
def test_training_on_a_gpu_leaves_nothing_there(amp):
    def train():
        hidden = [nn.Linear(4, 2000), nn.BatchNorm1d(2000), nn.ReLU(), nn.Linear(2000, 2000), nn.Linear(2000, 3)]
        model = nn.Sequential(*hidden)
        return model, train_locally(model, examples(100), device="cuda", amp=amp, momentum=0.9, local_epochs=3)

    train()  # libraries keep workspaces of their own from their first use on
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    model, result = train()
    assert torch.cuda.memory_allocated() <= allocated
    assert torch.cuda.memory_reserved() <= reserved
    assert result.metrics["train-loss-after"] < result.metrics["train-loss"]
    assert result.metrics["step-size-sum"] > 0
    assert {one.device.type for one in model.state_dict().values()} == {"cpu"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_and_cpu_see_the_examples_in_one_order():
    one, other = (train_locally(linear(), examples(), batch_size=5, device=name).arrays for name in ("cpu", "cuda"))
    for name, array in one.items():
        torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(array), rtol=1e-3, atol=1e-4)
