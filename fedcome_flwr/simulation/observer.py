"""What a run tells to whoever watches it."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from flwr.app import Message, MessageType, MetricRecord
from flwr.serverapp.strategy import Result

Phase = Literal["train", "evaluate", "server"]  # server: the ServerApp's own evaluation of the global model
ConfigValue = bool | int | float | str


class RunObserver:
    """Watches a run; override what you need, the rest does nothing.

    The methods are called in the thread that does the work, so the run waits for them.
    """

    def opened(self, num_supernodes: int, run_config: Mapping[str, ConfigValue]) -> None:
        """Learn that the app is loaded and its ServerApp about to start."""

    def started(self, num_rounds: int | None) -> None:
        """Learn that a strategy starts, for this many rounds where it says so."""

    def sent(self, messages: Sequence[Message]) -> None:
        """See messages on their way to the clients."""

    def replied(self, message: Message, reply: Message) -> None:
        """See one reply, or error reply, and the message that it answers."""

    def aggregated(self, phase: Phase, server_round: int, metrics: MetricRecord) -> None:
        """See the metrics of one phase of a round."""

    def ended(self, result: Result) -> None:
        """Learn that a strategy is done, and what it returns."""


def is_query(message: Message) -> bool:
    """Whether a message asks a client who it is. Many apps have no answer, and a run does not depend on it."""
    return message.metadata.message_type.split(".")[0] == MessageType.QUERY


class Tally(RunObserver):
    """Counts a run's replies to training and evaluation, and passes on to another observer all but queries."""

    def __init__(self, listener: RunObserver | None = None) -> None:
        self.replies: Counter[str] = Counter()  # by message type, as the errors
        self.errors: Counter[str] = Counter()
        self.first_error: str | None = None
        self.first_sent_at: float | None = None  # on the clock of time.perf_counter
        self._listener = listener or RunObserver()

    def opened(self, num_supernodes: int, run_config: Mapping[str, ConfigValue]) -> None:
        """Pass on."""
        self._listener.opened(num_supernodes, run_config)

    def started(self, num_rounds: int | None) -> None:
        """Pass on."""
        self._listener.started(num_rounds)

    def sent(self, messages: Sequence[Message]) -> None:
        """Note when the first messages left."""
        if self.first_sent_at is None and messages:
            self.first_sent_at = time.perf_counter()
        self._listener.sent([message for message in messages if not is_query(message)])

    def replied(self, message: Message, reply: Message) -> None:
        """Count."""
        if is_query(message):
            return
        kind = message.metadata.message_type
        self.replies[kind] += 1
        if reply.has_error():
            self.errors[kind] += 1
            if self.first_error is None:
                self.first_error = reply.error.reason or f"error code {reply.error.code}, no reason given"
        self._listener.replied(message, reply)

    def aggregated(self, phase: Phase, server_round: int, metrics: MetricRecord) -> None:
        """Pass on."""
        self._listener.aggregated(phase, server_round, metrics)

    def ended(self, result: Result) -> None:
        """Pass on."""
        self._listener.ended(result)
