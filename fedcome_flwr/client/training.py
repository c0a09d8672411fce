"""Local training, without Flower."""

from collections.abc import Iterable
from dataclasses import dataclass
from warnings import warn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.checks import check_at_least
from ..core.local_rule import DISTANCE_MOVED, STEP_SIZE_SUM, Correction
from .arrays import model_arrays
from .correction import BoundCorrection
from .data import Data, as_whole, check_data, evaluation_batches
from .device import borrowed, choose_device, mode, seeded
from .evaluation import LossFn, evaluate_batches
from .sgd import take_steps


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What a client has after local training.

    Attributes
    ----------
    arrays
        The trained model by name, in the order of its ``state_dict``, on the CPU.
    metrics
        ``num-examples``; ``train-loss``, the loss of the model as received; ``train-loss-after``;
        ``step-size-sum``, the learning rates of all steps taken together; ``clipped-steps`` with a limit on the
        gradient's norm; ``skipped-steps`` with AMP; ``distance-moved``, the norm of the change of all trainable
        parameters, with a correction.
    """

    arrays: dict[str, NDArray[np.generic]]
    metrics: dict[str, int | float]


def train_locally(
    model: nn.Module,
    data: Data,
    *,
    learning_rate: float = 0.05,
    learning_rate_decay: float = 0.998,
    server_round: int = 0,
    momentum: float = 0.0,
    weight_decay: float = 1e-3,
    batch_size: int | None = 50,
    local_epochs: int = 1,
    max_grad_norm: float | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    amp: bool = False,
    loss_fn: LossFn = cross_entropy,
    train_loss: bool = True,
    train_loss_after: bool = True,
    loss_batches: int | None = None,
    names: Iterable[str] | None = None,
    correction: Correction | None = None,
) -> LocalResult:
    r"""Train a model in place by SGD on one client's data.

    The rate is ``learning_rate`` :math:`\cdot` ``learning_rate_decay`` :math:`^{\text{server\_round}}`. Defaults
    are the paper's. Afterwards the model is on the CPU, its modules are in the modes (train or eval) that they came
    in, and PyTorch's global random state is what it was. Losses that are not finite do not stop the training; they
    show in the metrics and, since the server refuses such a model, in its report.

    Parameters
    ----------
    model
        Parameters without ``requires_grad`` stay as they are.
    data
        All inputs and all targets as two tensors; or batches that can be read again and again, such as a
        ``DataLoader``.
    learning_rate, learning_rate_decay, server_round, momentum, weight_decay
        Of PyTorch's SGD.
    batch_size
        Examples in a batch of tensors, in a new random order each epoch. Other data keep their own batches.
        ``None`` or 0, for all kinds of data: one step an epoch on all examples.
    local_epochs
        Passes over the data.
    max_grad_norm
        Gradients of a larger Euclidean norm (over all parameters) are scaled down to it. ``None`` or 0: none are.
    seed
        Fixes the order of the examples, and what PyTorch draws, such as dropout.
    device
        By default the GPU that this process sees, else the CPU.
    amp
        Automatic mixed precision in the steps: float16 with scaled losses on a GPU, bfloat16 elsewhere. A step that
        overflows is skipped, and does not count in ``step-size-sum``.
    loss_fn
        ``(outputs, targets)`` to the mean loss of a batch.
    train_loss, train_loss_after
        Whether to report the losses before and after training (in eval mode, without weight decay).
    loss_batches
        Bounds the data that these losses are taken on: for tensors as many examples as so many batches have, the
        same ones on every call. ``None`` or 0: all.
    names
        The arrays to return, in this order; by default all of the model's.
    correction
        What a method adds to every gradient, before ``max_grad_norm``: ``Correction(pull=0.1)`` is FedProx.

    Raises
    ------
    ValueError
        No data, data of another kind, a setting out of range, a device that is not there, or a model without
        trainable parameters.
    """
    for name, value, least in (
        ("learning_rate", learning_rate, 0),
        ("learning_rate_decay", learning_rate_decay, 0),
        ("momentum", momentum, 0),
        ("weight_decay", weight_decay, 0),
        ("batch_size", batch_size or 0, 0),
        ("local_epochs", local_epochs, 1),
        ("max_grad_norm", max_grad_norm or 0, 0),
        ("loss_batches", loss_batches or 0, 0),
    ):
        check_at_least(name, value, least)
    check_data(data)
    where = choose_device(device)
    rate = learning_rate * learning_rate_decay**server_round
    limit = loss_batches or 0
    if momentum and correction is not None and correction.shift:
        warn(
            f"momentum={momentum:g} with control variates: they are then no mean of gradients, since a step is more "
            "than its learning rate times its gradient; plain SGD is what the methods were proposed with",
            stacklevel=2,
        )

    def loss() -> float:
        batches = evaluation_batches(data, max_examples=limit * (batch_size or 0), max_batches=limit)
        return evaluate_batches(model, batches, where, loss_fn=loss_fn)["loss"]

    metrics: dict[str, int | float] = {}
    with borrowed(model, where):
        if train_loss:
            metrics["train-loss"] = loss()
        bound = BoundCorrection(model, correction) if correction is not None else None
        with mode(model, training=True), seeded(seed, where):
            steps = take_steps(
                model,
                data if batch_size else as_whole(data),
                where,
                learning_rate=rate,
                momentum=momentum,
                weight_decay=weight_decay,
                batch_size=batch_size or 0,
                local_epochs=local_epochs,
                max_grad_norm=max_grad_norm or 0.0,
                seed=seed,
                amp=amp,
                loss_fn=loss_fn,
                correction=bound,
            )
        distance = bound.distance_moved() if bound is not None else None
        if train_loss_after:
            metrics["train-loss-after"] = loss()
    metrics = {"num-examples": steps.examples} | metrics | {STEP_SIZE_SUM: rate * steps.taken}
    if distance is not None:
        metrics[DISTANCE_MOVED] = distance
    if max_grad_norm:
        metrics["clipped-steps"] = steps.clipped
    if amp:
        metrics["skipped-steps"] = steps.skipped
    return LocalResult(model_arrays(model, names), metrics)
