"""Everything that must survive a crash of the server, in one value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .past_updates import PastUpdate
from .server_memory import MemorySums
from .similarity import SimilarityTable


@dataclass(frozen=True)
class ServerState:
    """What the server knows beside the model.

    Attributes
    ----------
    round
        Number of rounds done, over all calls of ``start``.
    table
        Similarities between clients.
    server_step
        The last adaptive server step.
    last_losses
        Each client's last report of the received model's loss.
    last_reporters
        The clients whose report is from the last round.
    times_chosen
        How often each client was asked to train.
    memory
        The sums of what clients remember, for methods with client memory.
    past
        Clients' last pseudo-gradients by key, for methods that look back.
    """

    round: int = 0
    table: SimilarityTable = field(default_factory=SimilarityTable)
    server_step: float = 1.0
    last_losses: Mapping[str, float] = field(default_factory=dict)
    last_reporters: frozenset[str] = frozenset()
    times_chosen: Mapping[str, int] = field(default_factory=dict)
    memory: MemorySums = field(default_factory=MemorySums)
    past: Mapping[str, PastUpdate] = field(default_factory=dict)
