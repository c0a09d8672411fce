"""The last pseudo-gradients of clients that are not in this round, for weightings that look back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays
from .updates import ClientUpdate, flat, write_pseudo_gradients


@dataclass(frozen=True, eq=False)
class PastUpdate:
    """A client's last pseudo-gradient, by parameter name in the model's types, and the round it is of."""

    round: int
    arrays: Arrays


def absent_updates(
    past: Mapping[str, PastUpdate], present: Sequence[str], server_round: int
) -> tuple[list[ClientUpdate], list[int]]:
    """The remembered pseudo-gradients of all clients but those present, and their ages in rounds."""
    absent = sorted(past.keys() - set(present))
    updates = [ClientUpdate(key, past[key].arrays, 0.0, "pseudo-gradient") for key in absent]
    return updates, [server_round - past[key].round for key in absent]


def remembered(
    past: Mapping[str, PastUpdate],
    reference: Arrays,
    updates: Sequence[ClientUpdate],
    names: Sequence[str],
    *,
    server_round: int,
    rounds: int,
) -> dict[str, PastUpdate]:
    """The memory after a round: its pseudo-gradients, and the others' that the next round still looks back to.

    A pseudo-gradient that does not fit the model's type is forgotten, as it could not be multiplied with others.
    """
    if rounds == 0:
        return {}
    kept = {key: item for key, item in past.items() if server_round + 1 - item.round <= rounds}
    for update in updates:
        arrays = {name: _pseudo_gradient(update, reference[name], name) for name in names}
        if all(np.isfinite(array).all() for array in arrays.values()):
            kept[update.key] = PastUpdate(server_round, arrays)
        else:
            kept.pop(update.key, None)
    return kept


def _pseudo_gradient(update: ClientUpdate, reference: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    values = np.empty(reference.size)
    write_pseudo_gradients([update], flat(reference).astype(np.float64), name, slice(None), values[None])
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(reference.dtype)).reshape(reference.shape)
