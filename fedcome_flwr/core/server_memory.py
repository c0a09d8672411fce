"""The server's half of methods with client memory: two vectors, whatever the number of clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays
from .gram import combine
from .local_rule import STEP_SIZE_SUM, LocalRule
from .updates import ClientUpdate

_Sums = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class MemorySums:
    r"""What the clients remember, added up over all of them.

    Clients' memories move by amounts that the server can compute from their ordinary replies
    (:func:`~fedcome_flwr.core.local_rule.moved`), so that it keeps :math:`\sum_i h_i` and :math:`\sum_i c_i` and never
    sees, nor stores, a memory itself. Both sides move by the same replies: a client's change counts once the server
    tells it, with its next message, the round in which its last reply was accepted.

    Attributes
    ----------
    epoch
        How often all memories have been set back to 0, which happens when a client's memory is not the one that the
        server has counted.
    drift, control
        The sums in float64 by name; empty means 0.
    accepted
        The last round in which each client's reply was accepted in this epoch.
    restarted_by
        Clients that lost their memory while most others had theirs, so that all were set back to 0. It happens once
        for each: who keeps losing its memory, or says so, is left out, and not the others set back again.
    """

    epoch: int = 0
    drift: _Sums = field(default_factory=dict)
    control: _Sums = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)
    restarted_by: frozenset[str] = frozenset()

    def restarted(self, strayed: Sequence[str], replies: int) -> "MemorySums":
        """All memories at 0, in a new epoch, since those of ``strayed`` are not the ones counted.

        When most of the round's replies strayed it was not the clients' doing: a server went back to an old state, or
        all clients were started anew. None is noted then.
        """
        noted = strayed if 2 * len(strayed) <= replies else ()
        return MemorySums(self.epoch + 1, restarted_by=self.restarted_by.union(noted))

    def control_variate(
        self, reference: Arrays, names: Iterable[str], num_clients: int
    ) -> dict[str, NDArray[np.generic]]:
        r"""C, the mean of the control variates of all N clients, as it is sent: in the model's types."""
        return {
            name: (self.control[name] / num_clients).astype(reference[name].dtype)
            if name in self.control
            else np.zeros_like(reference[name])
            for name in names
        }

    def mean_drift(self, num_clients: int) -> dict[str, NDArray[np.float64]]:
        """The mean of the drifts of all N clients; empty while it is 0."""
        return {name: total / num_clients for name, total in self.drift.items()}

    def moved(
        self,
        rule: LocalRule,
        reference: Arrays,
        updates: Sequence[ClientUpdate],
        names: Sequence[str],
        *,
        control: Arrays,
        server_round: int,
    ) -> "MemorySums":
        r"""The sums after a round: :math:`\sum h_i - \sum g_i` and :math:`\sum c_i + \sum (g_i / s_i - C)`.

        Parameters
        ----------
        rule
            Which of both there is.
        reference
            The broadcast model.
        updates
            The accepted replies.
        names
            The parameters.
        control
            C as it was sent.
        server_round
            The round's number.
        """
        drift, controls = dict(self.drift), dict(self.control)
        if rule.drift:
            moves = combine(reference, updates, names, np.ones(len(updates)))
            drift = {name: drift.get(name, 0.0) - moves[name] for name in names}
        if rule.control:
            inverse = np.array([1.0 / update.metrics[STEP_SIZE_SUM] for update in updates])
            means = combine(reference, updates, names, inverse)
            controls = {
                name: controls.get(name, 0.0) + means[name] - len(updates) * control[name].astype(np.float64)
                for name in names
            }
        accepted = {**self.accepted, **{update.key: server_round for update in updates}}
        return MemorySums(self.epoch, drift, controls, accepted, self.restarted_by)
