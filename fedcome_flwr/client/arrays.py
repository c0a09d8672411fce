"""PyTorch models to named NumPy arrays, and back."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.arrays import Arrays, is_parameter


def model_arrays(model: nn.Module, names: Iterable[str] | None = None) -> dict[str, NDArray[np.generic]]:
    """Copies of a model's arrays on the CPU, in the order of its ``state_dict``.

    bfloat16, which NumPy lacks, travels as float32; every other type as itself, 0-dimensional counters as
    0-dimensional arrays. Entries of the ``state_dict`` that are no tensors (extra states) do not travel.

    A parameter that modules share (tied weights) has several names in the ``state_dict`` and travels under each of
    them. Its pseudo-gradient then counts once a name in the geometry of the clients; name it once in the initial
    arrays, as adapters do with their names, and it counts once.

    Parameters
    ----------
    model
        The model, on any device.
    names
        The arrays to copy, in this order; all by default.

    Raises
    ------
    ValueError
        The model has no array of a given name.
    """
    tensors = _tensors(model)
    return {name: _to_numpy(_named(tensors, name)) for name in (tensors if names is None else names)}


def array_names(model: nn.Module) -> list[str]:
    """The names that :func:`model_arrays` gives."""
    return list(_tensors(model))


def load_arrays(model: nn.Module, arrays: Arrays) -> None:
    """Write arrays into a model, in place and in the model's own types.

    The arrays may be a part of the model, such as its adapters or its head; what is not named stays as it is. Tied
    weights stay tied: a value under one of their names is the value of all, and of several names the last holds.

    Parameters
    ----------
    model
        The model, on any device.
    arrays
        Values by the names of the model's ``state_dict``.

    Raises
    ------
    ValueError
        A name that the model does not have, another shape, or a type that is not a real number. Nothing is
        written then.
    """
    tensors = _tensors(model)
    for name, array in arrays.items():
        expected = tuple(_named(tensors, name).shape)
        if array.shape != expected:
            raise ValueError(f"array {name!r}: expected shape {expected}, found {array.shape}")
        if array.dtype.kind not in "biuf":
            raise ValueError(f"array {name!r}: expected a real type such as float32, found {array.dtype}")
    with torch.no_grad():
        for name, array in arrays.items():
            # A copy: PyTorch warns when it is to share memory that NumPy calls read-only, as Flower's is.
            tensors[name].copy_(torch.tensor(np.asarray(array, order="C")))


def pseudo_gradient(received: Arrays, trained: Arrays) -> dict[str, NDArray[np.generic]]:
    """Received model minus trained model for the parameters, and the trained model's values for the buffers.

    Parameters
    ----------
    received
        The model before training; it has all the names of ``trained``.
    trained
        The model after training, whose types the result has. The subtraction is done in float64.
    """
    return {
        name: np.subtract(received[name], array, dtype=np.float64).astype(array.dtype)
        if is_parameter(name, array)
        else array
        for name, array in trained.items()
    }


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _named(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        shown = ", ".join(repr(known) for known in list(tensors)[:5]) + (", …" if len(tensors) > 5 else "")
        raise ValueError(f"array {name!r}: expected one of the model's {len(tensors)} names ({shown}), found no such")
    return tensors[name]


def _to_numpy(tensor: Tensor) -> NDArray[np.generic]:
    dtype = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
    array: NDArray[np.generic] = tensor.detach().to("cpu", dtype, copy=True).numpy()
    return array
