"""What one client contributes to a round, once its reply has been read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays

UpdateKind = Literal["arrays", "pseudo-gradient"]


@dataclass(frozen=True)
class ClientUpdate:
    """One client's reply.

    Attributes
    ----------
    key
        The client's stable name.
    arrays
        With ``kind="arrays"`` the client's model after local training; with ``kind="pseudo-gradient"`` broadcast
        model minus client's model for the parameters, and plain values for the buffers.
    num_examples
        Number of training examples, the client's share in weighted means.
    metrics
        The numbers that the client reported, ``train-loss`` (loss of the *received* model) among them.
    memory_round
        Under methods with client memory: the round in which the memory that the client trained with was last accepted,
        0 for a fresh one. ``None`` from a client that does not know of memory.
    """

    key: str
    arrays: Arrays
    num_examples: float
    kind: UpdateKind = "arrays"
    metrics: Mapping[str, float] = field(default_factory=dict)
    memory_round: int | None = None


def write_pseudo_gradients(
    updates: Sequence[ClientUpdate],
    reference: NDArray[np.float64],
    name: str,
    piece: slice,
    out: NDArray[np.float64],
) -> None:
    """Write a piece of the clients' flattened pseudo-gradients of array ``name``, subtracted in float64.

    ``reference`` is the same piece of the broadcast model, shape ``[width]``, and ``out`` has shape ``[m, width]``. All
    clients are cast in one call and subtracted in another: beside other threads, every call of NumPy's has to wait for
    the interpreter.
    """
    np.stack([flat(update.arrays[name])[piece] for update in updates], out=out, casting="unsafe")
    models = [update.kind == "arrays" for update in updates]
    if all(models):
        np.subtract(reference, out, out=out)
    else:
        out[models] = reference - out[models]


def flat(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array as a vector in C order, whose slices never copy more than themselves.

    A contiguous array is viewed; any other is read through its flat iterator, since ``reshape`` would copy all of
    it for every client at once.
    """
    return array.reshape(-1) if array.flags.c_contiguous else array.flat  # type: ignore[return-value]
