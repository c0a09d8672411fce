"""What a client adds to its gradient, and how its memory moves: the client's half of a method, as plain arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays
from .checks import check_at_least

STEP_SIZE_SUM = "step-size-sum"
DISTANCE_MOVED = "distance-moved"


@dataclass(frozen=True)
class LocalRule:
    r"""What a method lets its clients add to every gradient of their local training.

    Client i adds to the gradient at w, with :math:`w_0` the broadcast model,

    .. math:: \mu \, (w - w_0 + h_i) + (C - c_i)

    Every local rule of the compared methods is of this form: FedProx pulls, SCAFFOLD corrects by control variates,
    FedDyn pulls towards a drifted point (its dual variable is :math:`-\mu h_i`), FedDC does both.

    Attributes
    ----------
    pull
        :math:`\mu \ge 0`.
    drift
        Whether clients remember their drift :math:`h_i`, the sum of all their :math:`w_i - w_0`; else it is 0.
    control
        Whether clients remember a control variate :math:`c_i`, and the server sends C, the mean of all of them; else
        both are 0.
    """

    pull: float = 0.0
    drift: bool = False
    control: bool = False

    def __post_init__(self) -> None:
        check_at_least("pull", self.pull, 0)
        if self.pull == float("inf"):
            raise ValueError("pull: expected a finite number, found inf")

    @property
    def has_memory(self) -> bool:
        """Whether clients remember something from round to round."""
        return self.drift or self.control


@dataclass(frozen=True, eq=False)
class Correction:
    r"""A local rule with one client's values for one round: :math:`\mu \, (w - w_0 + h_i) + (C - c_i)`.

    Attributes
    ----------
    pull
        :math:`\mu`.
    drift
        :math:`h_i` by array name; names that are not there have drift 0.
    shift
        :math:`C - c_i` by array name; names that are not there have shift 0.
    """

    pull: float = 0.0
    drift: Arrays = field(default_factory=dict)
    shift: Arrays = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """What one client remembers under a rule with memory: drift and control by name; empty means 0."""

    drift: Arrays = field(default_factory=dict)
    control: Arrays = field(default_factory=dict)


def correction(rule: LocalRule, memory: ClientMemory, control: Arrays) -> Correction:
    """The rule with a client's memory and the server's control ``C`` filled in."""
    shift = (
        {name: _subtract(value, memory.control.get(name)) for name, value in control.items()} if rule.control else {}
    )
    return Correction(rule.pull, memory.drift if rule.drift else {}, shift)


def moved(
    rule: LocalRule,
    memory: ClientMemory,
    pseudo_gradients: Mapping[str, NDArray[np.generic]],
    control: Arrays,
    step_size_sum: float,
) -> ClientMemory:
    r"""The memory after local training.

    With the pseudo-gradient :math:`g_i = w_0 - w_i` and the sum :math:`s_i` of the sizes of all steps taken,

    .. math:: h_i \leftarrow h_i - g_i, \qquad c_i \leftarrow c_i - C + g_i / s_i.

    With plain SGD the second makes :math:`c_i` the mean of the client's gradients along its path (SCAFFOLD's
    option II), the pull included.

    Parameters
    ----------
    rule
        Says which of both is remembered.
    memory
        The memory before.
    pseudo_gradients
        :math:`g_i` by name, for the parameters alone, in the type that the new memory is to have.
    control
        :math:`C` as received.
    step_size_sum
        :math:`s_i > 0`; not used without control.
    """
    drift: dict[str, NDArray[np.generic]] = {}
    new_control: dict[str, NDArray[np.generic]] = {}
    for name, gradient in pseudo_gradients.items():
        if rule.drift:
            drift[name] = (_float64(memory.drift.get(name)) - _float64(gradient)).astype(gradient.dtype)
        if rule.control:
            mean = _float64(gradient) / step_size_sum
            change = mean - _float64(control[name])
            new_control[name] = (_float64(memory.control.get(name)) + change).astype(gradient.dtype)
    return ClientMemory(drift, new_control)


def _subtract(value: NDArray[np.generic], other: NDArray[np.generic] | None) -> NDArray[np.generic]:
    """The difference in float64, in the first one's type; ``None`` is 0."""
    return np.asarray(_float64(value) - _float64(other)).astype(value.dtype)


def _float64(array: NDArray[np.generic] | None) -> NDArray[np.float64]:
    return np.zeros(()) if array is None else array.astype(np.float64)
