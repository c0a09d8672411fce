"""From replies to a Gram matrix: which of them can be used, and why the others cannot."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, find_fault, find_non_finite
from .gram import gram_matrix
from .local_rule import STEP_SIZE_SUM
from .methods import Method
from .past_updates import absent_updates
from .server_memory import MemorySums
from .state import ServerState
from .updates import ClientUpdate


@dataclass(frozen=True, eq=False)
class Gathered:
    """A round's usable pseudo-gradients and their geometry.

    Attributes
    ----------
    usable
        The updates that can be used, sorted by key.
    absent, ages
        Remembered pseudo-gradients of other clients, and how many rounds old each is.
    gram
        Inner products of the usable ones and then the absent ones.
    left_out
        Why the other updates cannot be used, by key.
    strayed
        Clients whose memory is not the one that the server has counted.
    """

    usable: list[ClientUpdate]
    absent: list[ClientUpdate]
    ages: list[int]
    gram: NDArray[np.float64]
    left_out: dict[str, str]
    strayed: tuple[str, ...]


def gather(
    updates: Sequence[ClientUpdate], reference: Arrays, trained: Sequence[str], method: Method, state: ServerState
) -> Gathered:
    """Check each update by itself, and multiply all that can be used, those of absent clients included."""
    usable, left_out, strayed = _screen(updates, reference, trained, method, state.memory)
    absent, ages = absent_updates(state.past, [update.key for update in usable], state.round + 1)
    gram = gram_matrix(reference, [*usable, *absent], trained)
    finite = np.isfinite(np.diagonal(gram))
    for update in (update for update, fine in zip(usable, finite, strict=False) if not fine):
        left_out[update.key] = _why_not_finite(update, trained)
    usable = [update for update, fine in zip(usable, finite, strict=False) if fine]
    return Gathered(usable, absent, ages, gram[np.ix_(finite, finite)], left_out, strayed)


def _screen(
    updates: Sequence[ClientUpdate], reference: Arrays, trained: Sequence[str], method: Method, memory: MemorySums
) -> tuple[list[ClientUpdate], dict[str, str], tuple[str, ...]]:
    """Each update's key, memory, numbers and arrays. The finiteness of parameters shows in the Gram matrix."""
    usable: list[ClientUpdate] = []
    left_out: dict[str, str] = {}
    strayed: list[str] = []
    count = Counter(update.key for update in updates)
    for update in sorted(updates, key=lambda update: update.key):
        if count[update.key] > 1:
            left_out[update.key] = f"expected one reply, found {count[update.key]} under this key"
        elif fault := _memory_fault(update, method, memory):
            left_out[update.key] = fault
            # A client of which nothing is counted starts at 0 whatever it had: another answer is its own fault, and
            # no reason to take everybody's memory.
            if update.memory_round is not None and (update.key in memory.accepted or update.key in memory.restarted_by):
                strayed.append(update.key)
        elif fault := next(_faults(update, reference, trained, method), None):
            left_out[update.key] = fault
        else:
            usable.append(update)
    if 2 * len(strayed) > len(updates):
        return usable, left_out, tuple(strayed)
    for key in memory.restarted_by.intersection(strayed):
        left_out[key] += "; all memories were set back to 0 for it before: give it a state_dir that lasts"
    return usable, left_out, tuple(key for key in strayed if key not in memory.restarted_by)


def _why_not_finite(update: ClientUpdate, trained: Sequence[str]) -> str:
    name = find_non_finite(update.arrays, trained)
    if name is None:
        return "its pseudo-gradient is too large: the square of its norm does not fit float64"
    return f"array {name!r}: expected finite values, found NaN or infinity"


def _memory_fault(update: ClientUpdate, method: Method, memory: MemorySums) -> str | None:
    expected = memory.accepted.get(update.key, 0)
    if not method.rule.has_memory or update.memory_round == expected:
        return None
    if update.memory_round is None:
        return (
            f"{method.name} needs clients that keep a memory, and this one says nothing of it: use "
            "fedcome_flwr.client.client_app, or FedCOMEClient in a ClientApp with mods=[memory_mod]"
        )
    return f"expected its memory of round {expected}, found that of round {update.memory_round} (0: none)"


def _faults(update: ClientUpdate, reference: Arrays, trained: Sequence[str], method: Method) -> Iterator[str]:
    if not 0 < update.num_examples < np.inf:
        yield f"num-examples: expected a positive number, found {update.num_examples!r}"
    if method.needs_losses and not np.isfinite(update.metrics.get(method.loss_key, np.nan)):
        found = update.metrics.get(method.loss_key, f"the metrics {sorted(update.metrics) or 'none'}")
        yield (
            f"{method.name} needs the metric {method.loss_key!r}, the loss of the received model before training: "
            f"expected a finite number, found {found}"
        )
    if method.rule.control and not 0 < update.metrics.get(STEP_SIZE_SUM, 0.0) < np.inf:
        found = update.metrics.get(STEP_SIZE_SUM, f"the metrics {sorted(update.metrics) or 'none'}")
        yield (
            f"{method.name} needs the metric {STEP_SIZE_SUM!r}, the sum of the sizes of all local steps: expected a "
            f"positive number, found {found}"
        )
    if fault := find_fault(update.arrays, reference, trained):
        yield fault
