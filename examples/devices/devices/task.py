"""The network, and a device's data."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

Part = tuple[Tensor, Tensor]


def build_model() -> nn.Module:
    """One hidden layer for digits of 8×8 pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def initial_model(seed: int) -> nn.Module:
    """The network with weights that depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model()


def load_data(folder: Path) -> tuple[Part, Part]:
    """Training and test data: `train.npz` and `test.npz`, each with `images` [n, 8, 8] in [0, 1] and `labels` [n]."""
    return _load(folder / "train.npz"), _load(folder / "test.npz")


def _load(path: Path) -> Part:
    if not path.is_file():
        raise FileNotFoundError(f"expected the file {path}; prepare_data.py writes such folders")
    with np.load(path, allow_pickle=False) as arrays:
        if missing := {"images", "labels"} - set(arrays.files):
            raise ValueError(f"{path}: expected arrays images and labels, found no {', '.join(sorted(missing))}")
        images, labels = arrays["images"], arrays["labels"]
    if images.ndim != 3 or images.shape[1:] != (8, 8) or labels.shape != images.shape[:1]:
        raise ValueError(f"{path}: expected images [n, 8, 8] and labels [n], found {images.shape} and {labels.shape}")
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(labels.astype(np.int64))
