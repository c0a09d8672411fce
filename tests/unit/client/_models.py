"""Small networks and data that the tests of the client share."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn

FULL = {"batch_size": 0, "learning_rate": 0.1, "learning_rate_decay": 1.0, "weight_decay": 0.0}


def examples(count: int = 23, *shape: int, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *(shape or (4,)), generator=drawn)
    return inputs, torch.randint(0, classes, (count,), generator=drawn)


def seeded(build, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def linear(seed: int = 0) -> nn.Module:
    return seeded(lambda: nn.Linear(4, 3), seed)


def normalised() -> nn.Module:
    """Dropout, running statistics and a 0-dimensional counter."""
    return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)))


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def bytes_of(arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}
