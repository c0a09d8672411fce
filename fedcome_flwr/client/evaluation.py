"""What a model is worth on a client's data."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from .data import Batch, check_examples
from .device import mode, seeded

LossFn = Callable[[Tensor, Tensor], Tensor]
"""``(outputs, targets)`` to the mean loss of a batch, a scalar tensor."""

MetricsFn = Callable[[Tensor, Tensor], Mapping[str, float]]
"""``(outputs, targets)`` to means over a batch, by name."""


def evaluate_batches(
    model: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    *,
    loss_fn: LossFn,
    metrics_fn: MetricsFn | None = None,
) -> dict[str, int | float]:
    """Means over all examples: ``loss`` and what ``metrics_fn`` gives; with them ``num-examples``.

    The model is in eval mode meanwhile, so that neither dropout nor batch statistics count and no buffer changes.
    Whatever order the batches are drawn in is the same on every call.

    Parameters
    ----------
    model
        The model, on ``device``.
    batches
        Inputs and targets, on any device.
    device
        Where to compute.
    loss_fn, metrics_fn
        Means over one batch; they are weighted by its number of examples.

    Raises
    ------
    ValueError
        There are no examples.
    """
    count = 0
    totals: defaultdict[str, float] = defaultdict(float)
    with mode(model, training=False), seeded(0, device), torch.no_grad():
        for inputs, targets in batches:
            targets = targets.to(device)
            outputs = model(inputs.to(device))
            count += len(targets)
            totals["loss"] += loss_fn(outputs, targets).item() * len(targets)
            for name, value in (metrics_fn(outputs, targets) if metrics_fn else {}).items():
                totals[name] += float(value) * len(targets)
    check_examples(count)
    return {"num-examples": count} | {name: total / count for name, total in totals.items()}


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Share of the targets that are the class with the largest output; nothing where targets are no class numbers."""
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return {}
    return {"accuracy": (outputs.argmax(1) == targets).sum().item() / targets.numel()}
