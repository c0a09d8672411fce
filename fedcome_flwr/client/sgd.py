"""Steps of stochastic gradient descent."""

from dataclasses import dataclass

import torch
from torch import nn

from .correction import BoundCorrection
from .data import Data, check_examples, training_batches
from .evaluation import LossFn

# A client takes few steps a round, and each one that overflows float16 is lost. PyTorch's 2**16 counts on
# thousands of steps to recover from that.
_FIRST_LOSS_SCALE = 2.0**13


@dataclass(frozen=True)
class Steps:
    """What was done: examples seen in an epoch, steps taken, with a clipped gradient, and skipped by AMP."""

    examples: int
    taken: int
    clipped: int
    skipped: int


def take_steps(
    model: nn.Module,
    data: Data,
    device: torch.device,
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    batch_size: int,
    local_epochs: int,
    max_grad_norm: float,
    seed: int,
    amp: bool,
    loss_fn: LossFn,
    correction: BoundCorrection | None = None,
) -> Steps:
    """Train a model in place, in the mode it is in.

    Parameters are those of :func:`~fedcome_flwr.client.train_locally`, after the rate's decay. No gradient is left
    behind.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("model: expected a parameter with requires_grad, found none")
    optimizer = torch.optim.SGD(trainable, lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
    half = torch.float16 if device.type == "cuda" else torch.bfloat16  # what each is fast at
    autocast = torch.autocast(device.type, half, enabled=amp)
    # bfloat16 has the range of float32, so that its gradients need no scale.
    scaler = torch.amp.GradScaler(device.type, init_scale=_FIRST_LOSS_SCALE, enabled=amp and half == torch.float16)
    # Drawn on the CPU, so that the order does not depend on the device.
    order = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()  # a gradient that the caller left would be part of the first step
    examples = steps = clipped = skipped = 0
    for _ in range(local_epochs):
        for inputs, targets in training_batches(data, batch_size, order):
            with autocast:
                loss = loss_fn(model(inputs.to(device)), targets.to(device))
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            if correction is not None:
                correction.add_to_gradients()
            # Clipping comes last, so that it bounds the gradient that is used.
            if max_grad_norm:
                norm = nn.utils.clip_grad_norm_(trainable, max_grad_norm)
                clipped += int(norm.item() > max_grad_norm)
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            examples += len(targets)
            steps += 1
            skipped += int(scaler.get_scale() < scale)  # how a GradScaler tells that it skipped the step
    check_examples(examples)
    return Steps(examples // local_epochs, steps - skipped, clipped, skipped)
