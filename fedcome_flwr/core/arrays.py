"""Named arrays: which of them are parameters, which are buffers, and whether a reply's arrays can be used."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
"""A model: its arrays by name, in the model's order."""

ParameterRule = Callable[[str, NDArray[np.generic]], bool]
"""Says of an array's name and value whether it is a parameter (else it is a buffer)."""

_BUFFER_ENDINGS = ("running_mean", "running_var", "num_batches_tracked")


def is_parameter(name: str, array: NDArray[np.generic]) -> bool:
    """Whether an array is trained and so spans the geometry of the pseudo-gradients.

    Integer and boolean arrays and arrays whose name ends in ``running_mean``, ``running_var`` or
    ``num_batches_tracked`` (PyTorch's names for normalisation statistics) are buffers; all others are parameters.
    """
    return bool(np.issubdtype(array.dtype, np.floating)) and not name.endswith(_BUFFER_ENDINGS)


def split_names(arrays: Arrays, rule: ParameterRule = is_parameter) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the parameters and of the buffers, each in the model's order.

    Raises
    ------
    ValueError
        A custom rule called an array a parameter that is not of a floating-point type.
    """
    parameters = tuple(name for name, array in arrays.items() if rule(name, array))
    for name in parameters:
        if not np.issubdtype(arrays[name].dtype, np.floating):
            raise ValueError(
                f"array {name!r} was declared a parameter: expected a floating-point type, found {arrays[name].dtype}"
            )
    return parameters, tuple(name for name in arrays if name not in set(parameters))


def find_fault(arrays: Arrays, reference: Arrays, parameters: Sequence[str]) -> str | None:
    """What makes a client's arrays unusable beside the reference model, or ``None``.

    Checked are names, shapes, types, and the finiteness of buffers. A parameter may come in any floating-point
    type, a buffer in any real one. The finiteness of parameters shows in the Gram matrix, which needs no pass
    of its own over them (see :func:`find_non_finite`).
    """
    missing = [name for name in reference if name not in arrays]
    extra = [name for name in arrays if name not in reference]
    if missing or extra:
        return (
            f"expected the {len(reference)} arrays of the model, found {len(arrays)}: "
            f"missing {_shorten(missing)}, unexpected {_shorten(extra)}"
        )
    trained = set(parameters)
    for name, expected in reference.items():
        found = arrays[name]
        if found.shape != expected.shape:
            return f"array {name!r}: expected shape {expected.shape}, found {found.shape}"
        if name in trained:
            if not np.issubdtype(found.dtype, np.floating):
                return f"array {name!r}: expected a floating-point type such as {expected.dtype}, found {found.dtype}"
        elif not (np.issubdtype(found.dtype, np.number) or found.dtype == np.bool_) or np.iscomplexobj(found):
            return f"array {name!r}: expected a real type such as {expected.dtype}, found {found.dtype}"
        elif not np.isfinite(found).all():
            return f"array {name!r}: expected finite values, found NaN or infinity"
    return None


def find_non_finite(arrays: Arrays, names: Sequence[str]) -> str | None:
    """The first of the named arrays that holds NaN or infinity, or ``None``."""
    return next((name for name in names if not np.isfinite(arrays[name]).all()), None)


def mean_of_buffers(
    reference: Arrays, buffers: Sequence[Arrays], names: Sequence[str], weights: NDArray[np.float64]
) -> dict[str, NDArray[np.generic]]:
    """Weighted mean of the clients' buffers, in the reference's types.

    Sums are taken in float64; integer buffers are rounded to the nearest integer (half to even) and booleans are
    decided by the majority of the weight (a tie is ``False``). Shapes are kept, 0-dimensional ones included.

    Parameters
    ----------
    reference
        The broadcast model, which gives shapes and types.
    buffers
        One mapping a client.
    names
        The buffers to average.
    weights
        Share of each client, shape ``[m]``, sum 1.
    """
    means: dict[str, NDArray[np.generic]] = {}
    for name in names:
        total = np.zeros(reference[name].shape, dtype=np.float64)
        for weight, arrays in zip(weights, buffers, strict=True):
            total += weight * arrays[name].astype(np.float64)
        means[name] = _cast(total, reference[name].dtype)
    return means


def _cast(values: NDArray[np.float64], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    if dtype == np.bool_:
        return np.asarray(values > 0.5)
    if np.issubdtype(dtype, np.integer):
        return np.asarray(np.rint(values)).astype(dtype)
    return values.astype(dtype)


def _shorten(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:limit]) or "none"
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
