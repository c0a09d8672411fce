"""Where a client computes, and what PyTorch draws there."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from logging import getLogger

import torch

_log = getLogger("flwr")


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """The device of the given name, else the GPU that this process sees, else the CPU; named once in the log.

    Raises
    ------
    ValueError
        No device of this name, or no GPU in sight for it.
    """
    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: expected a name such as 'cuda', 'cuda:1' or 'cpu', found {name!r}") from error
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise ValueError(
            f"device: expected one of the {torch.cuda.device_count()} GPUs that this process sees, found {name!r}"
        )
    _announce(device)
    return device


@contextmanager
def borrowed(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Have the model on ``device``, then on the CPU again, and release the GPU memory that others may wait for."""
    try:
        model.to(device)
        yield
    finally:
        model.to("cpu")
        if device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let PyTorch draw (dropout, the order of a ``DataLoader``) from ``seed``, and then go on as if nothing was."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def mode(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """Have the model in train or eval mode, then each of its modules in the mode it was in."""
    before = [(module, module.training) for module in model.modules()]
    try:
        model.train(training)
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


@cache  # once for each device of a process
def _announce(device: torch.device) -> None:
    name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    _log.info("fedcome: local training runs on %s", name)
