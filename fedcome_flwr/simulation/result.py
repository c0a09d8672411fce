"""What a run leaves behind."""

from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import Context
from flwr.serverapp.strategy import Result


class Seconds(NamedTuple):
    """How long a run took."""

    to_first_round: float | None
    """From the call to the first message; ``None`` where no message was sent."""
    total: float


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind, the same on both backends.

    Attributes
    ----------
    results
        What each ``Strategy.start`` in the ServerApp returned, in order. Empty for legacy servers and for
        apps that use no strategy.
    context
        The ServerApp's context, with the state that it left there.
    num_replies
        Replies of clients, error replies included.
    num_errors
        Error replies among them.
    failed_phases
        Message types, such as ``"train"``, of which every reply was an error.
    first_error
        Reason of the first error reply; its first line is the client's exception.
    seconds
        Time to the first message and in all. On Ray the first message waits, in the first round's time, until the
        clients' processes have started.
    """

    results: tuple[Result, ...]
    context: Context
    num_replies: int
    num_errors: int
    failed_phases: tuple[str, ...]
    first_error: str | None
    seconds: Seconds
