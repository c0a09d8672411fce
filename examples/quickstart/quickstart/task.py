"""The model and its evaluation."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedcome_flwr.core import Arrays, is_parameter

MODELS = ("auto", "mlp", "cnn")
EVALUATION_BATCH = 500  # bounds the memory of the convolutions, not the result


def initial_model(name: str, image_shape: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    """Return the network with weights that depend on `seed` alone."""
    # Does not disturb, and is not disturbed by, what else the process draws.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model(name, image_shape, num_classes)


def build_model(name: str, image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return the paper's network for images of `image_shape`: channels, height, width.

    "auto" is the paper's choice: one hidden layer for grey images of up to ten classes, else convolutions.
    """
    if name not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}; got '{name}'")
    channels, height, width = image_shape
    if name == "auto":
        name = "mlp" if channels == 1 and num_classes <= 10 else "cnn"
    return (_mlp if name == "mlp" else _cnn)(channels, height, width, num_classes)


def _mlp(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), nn.ReLU(), nn.Linear(64, num_classes))


def _cnn(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Convolutions are padded, as in the authors' code and in FedAvg's paper: 1.7 million weights on 28×28 pixels."""
    rows, columns = height // 4, width // 4  # each pooling halves
    if min(rows, columns) < 1:
        raise ValueError(f"model: 'cnn' needs images of at least 4×4 pixels; got {height}×{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, 512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    )


def prepare_device(threads: int) -> torch.device:
    """Return the first visible GPU, else the CPU, of which PyTorch then uses `threads` (0: its choice).

    The app's default is one: sums, and so the last bits of the weights, depend on the number of threads,
    and the steps of a small network are so short that threads on a busy machine mostly wait for each other.
    """
    if threads:
        torch.set_num_threads(threads)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the mean cross-entropy, without weight decay, and the accuracy."""
    model.eval()
    loss = correct = 0.0
    for some_images, some_labels in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
        scores = model(some_images)
        loss += F.cross_entropy(scores, some_labels, reduction="sum").item()
        correct += (scores.argmax(1) == some_labels).sum().item()
    return loss / len(labels), correct / len(labels)


def decay_penalty(arrays: Arrays, weight_decay: float) -> float:
    """Return ½ · weight_decay · ‖w‖² over the parameters, which weight decay adds to the loss."""
    squares = (np.square(a, dtype=np.float64).sum() for name, a in arrays.items() if is_parameter(name, a))
    return 0.5 * weight_decay * float(sum(squares))
