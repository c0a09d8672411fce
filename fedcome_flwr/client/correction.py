"""A local rule beside a model: the tensors that it adds to the gradients."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from ..core.arrays import Arrays
from ..core.local_rule import Correction


class BoundCorrection:
    r"""Adds :math:`\mu (w - w_0 + h_i) + (C - c_i)` to a model's gradients, as tensors built once a round.

    Parameters
    ----------
    model
        The model before training, :math:`w_0`, on the device that it is trained on.
    correction
        Values by the names of the model's parameters. Of tied parameters, which have several names, the first that is
        given counts.
    """

    def __init__(self, model: nn.Module, correction: Correction) -> None:
        self._pull = correction.pull
        self._terms: list[tuple[nn.Parameter, Tensor, Tensor, Tensor | None]] = []
        for parameter, names in _trainable(model):
            start = parameter.detach().clone()
            drift = _beside(parameter, names, correction.drift)
            anchor = start if drift is None else start - drift
            self._terms.append((parameter, start, anchor, _beside(parameter, names, correction.shift)))

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        """Add the terms at the parameters' present values; parameters without a gradient are passed over."""
        for parameter, _, anchor, shift in self._terms:
            if parameter.grad is None:
                continue
            if self._pull:
                parameter.grad.add_(parameter - anchor, alpha=self._pull)
            if shift is not None:
                parameter.grad.add_(shift)

    @torch.no_grad()
    def distance_moved(self) -> float:
        r""":math:`\lVert w - w_0 \rVert` over all trainable parameters."""
        squares = [torch.sum(torch.square((parameter - start).double())) for parameter, start, _, _ in self._terms]
        return float(torch.sqrt(torch.stack(squares).sum()))


def _trainable(model: nn.Module) -> Iterator[tuple[nn.Parameter, list[str]]]:
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(parameter, []).append(name)
    yield from names.items()


def _beside(parameter: nn.Parameter, names: list[str], arrays: Arrays) -> Tensor | None:
    name = next((name for name in names if name in arrays), None)
    if name is None:
        return None
    return torch.tensor(np.asarray(arrays[name]), dtype=parameter.dtype, device=parameter.device)
