"""Small models and client updates for the tests of the mathematics."""

import numpy as np
from numpy.typing import NDArray

from fedcome_flwr.core import ClientUpdate


def model(dtype: str = "float32", seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Two parameters, one of them 0-dimensional, and buffers of every kind."""
    rng = np.random.default_rng(seed)
    return {
        "layer.weight": rng.normal(size=(4, 3)).astype(dtype),
        "scale": np.array(0.5, dtype=dtype),
        "norm.running_mean": np.zeros(3, dtype=dtype),
        "norm.num_batches_tracked": np.array(0, dtype=np.int64),
        "mask": np.array([True, False]),
    }


PARAMETERS = ("layer.weight", "scale")
BUFFERS = ("norm.running_mean", "norm.num_batches_tracked", "mask")


def trained(reference: dict[str, NDArray[np.generic]], key: str, seed: int, **values: object) -> ClientUpdate:
    """A client that moved every parameter at random and counted its batches."""
    rng = np.random.default_rng(seed)
    arrays = dict(reference)
    for name in PARAMETERS:
        arrays[name] = (reference[name] - 0.1 * rng.normal(size=reference[name].shape)).astype(reference[name].dtype)
    arrays["norm.running_mean"] = rng.normal(size=3).astype(reference["norm.running_mean"].dtype)
    arrays["norm.num_batches_tracked"] = np.array(seed + 1)
    return ClientUpdate(key, arrays, num_examples=10 * (seed + 1), **values)  # type: ignore[arg-type]


def stacked(reference: dict[str, NDArray[np.generic]], updates: list[ClientUpdate]) -> NDArray[np.float64]:
    """The pseudo-gradients as rows, shape ``[m, d]``: what the package never builds."""
    return np.array(
        [
            np.concatenate([(reference[n].astype(float) - u.arrays[n].astype(float)).ravel() for n in PARAMETERS])
            for u in updates
        ]
    )
