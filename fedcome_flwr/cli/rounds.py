"""Turn a run's events into one line per round."""

import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result

from ..simulation.observer import ConfigValue, Phase, RunObserver

_METRICS_IN_A_LINE = 4  # per phase; the table at the end has them all


class RoundLines(RunObserver):
    """Hands one line to ``show`` for each round that has ended.

    A round ends where messages of another round are sent, or with :meth:`finish`: what the server evaluates
    itself comes after the last reply.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self.num_rounds: int | None = None
        self.server_round: int | None = None
        self.sent_in_phase = 0
        self.done_in_phase = 0
        self.done_in_round = 0
        self.headline = ""
        self._errors = 0
        self._told_of_error = False
        self._phase = ""
        self._metrics: dict[Phase, MetricRecord] = {}
        self._began_at = 0.0

    def opened(self, num_supernodes: int, run_config: Mapping[str, ConfigValue]) -> None:
        """Take the number of rounds from the run config, for servers that do not tell it."""
        rounds = run_config.get("num-server-rounds")
        self.num_rounds = rounds if isinstance(rounds, int) else None

    def started(self, num_rounds: int | None) -> None:
        """Take the number of rounds from the strategy, which knows best."""
        self.finish()
        self.num_rounds = num_rounds if num_rounds is not None else self.num_rounds

    def sent(self, messages: Sequence[Message]) -> None:
        """Begin a round, or a phase of it, where these messages belong to another one."""
        if not messages:
            return
        if (server_round := round_of(messages[0])) != self.server_round:
            self.finish()
            self.server_round = server_round
            self._began_at = time.perf_counter()
        if (phase := messages[0].metadata.message_type) != self._phase:
            self._phase = phase
            self.sent_in_phase = self.done_in_phase = 0
        self.sent_in_phase += len(messages)

    def replied(self, message: Message, reply: Message) -> None:
        """Count the reply."""
        self.done_in_phase += 1
        self.done_in_round += 1
        if reply.has_error():
            self._errors += 1
            if not self._told_of_error:  # at once: nobody wants to learn it at the end of a long run
                self._told_of_error = True
                self.show(f"first error of a client: {first_line(reply.error.reason or 'no reason given')}")

    def aggregated(self, phase: Phase, server_round: int, metrics: MetricRecord) -> None:
        """Keep the metrics for the round's line."""
        self._metrics[phase] = metrics
        if server_round == 0:  # the model before training, before any message
            self.show("before round 1 | " + self._metrics_text())
            self._metrics.clear()

    def ended(self, result: Result) -> None:
        """End the last round."""
        self.finish()

    def finish(self) -> None:
        """Show the line of the round that was under way, if there was one."""
        if self.server_round is not None:
            seconds = time.perf_counter() - self._began_at
            replies = replies_text(self.done_in_round, self._errors)
            self.headline = headline(self._metrics)
            parts = [self.headline, f"{seconds:.2f} s, {replies}", self._metrics_text()]
            self.show(f"{self.title()}: " + " | ".join(part for part in parts if part))
        self.server_round = None
        self.done_in_round = self._errors = self.sent_in_phase = self.done_in_phase = 0
        self._phase = ""
        self._metrics.clear()

    def title(self) -> str:
        """Where the run stands: ``round 3 of 10``; empty where no round is under way."""
        if self.server_round is None:
            return ""
        # A strategy that goes on from a checkpoint may count further than the number it was started with.
        counted = self.num_rounds is not None and self.server_round <= self.num_rounds
        return f"round {self.server_round}" + (f" of {self.num_rounds}" if counted else "")

    def phase_text(self) -> str:
        """What the clients are doing: ``train 37/100``."""
        return f"{self._phase} {self.done_in_phase}/{self.sent_in_phase}" if self._phase else ""

    def _metrics_text(self) -> str:
        return " | ".join(f"{phase}: {metrics_text(metrics)}" for phase, metrics in self._metrics.items())


def headline(metrics: Mapping[Phase, MetricRecord]) -> str:
    """What a round is judged by: ``accuracy 0.91, hurt 0 of 20`` (clients, to first order)."""
    parts: list[str] = []
    for phase in ("evaluate", "server"):
        if not parts and "accuracy" in metrics.get(phase, {}):
            parts.append(f"accuracy {number_text(metrics[phase]['accuracy'])}")
    train = metrics.get("train", MetricRecord())
    if (hurt := train.get("fedcome-hurt-by-direction")) is not None:
        parts.append(f"hurt {hurt} of {train.get('fedcome-clients')}")
    return ", ".join(parts)


def round_of(message: Message) -> int | None:
    """Round that a message belongs to: ``server-round`` in a config, as strategies send it, or the group."""
    for record in message.content.values():
        if isinstance(record, ConfigRecord) and isinstance(number := record.get("server-round"), int):
            return number
    return int(message.metadata.group_id) if message.metadata.group_id.isdigit() else None


def replies_text(replies: int, errors: int) -> str:
    """Return how many replies there were, and how many were errors: ``10 replies, 1 error``."""
    parts = [_counted(replies, "reply", "replies"), _counted(errors, "error", "errors") if errors else ""]
    return ", ".join(part for part in parts if part)


def first_line(reason: str) -> str:
    """Return the exception that a client's error reply begins with."""
    return reason.strip().partition("\n")[0]


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def metrics_text(metrics: MetricRecord) -> str:
    """Return the first few metrics in a line."""
    shown = [f"{name} {number_text(value)}" for name, value in list(metrics.items())[:_METRICS_IN_A_LINE]]
    return ", ".join(shown) + (", ..." if len(metrics) > len(shown) else "")


def number_text(value: float | list[int] | list[float]) -> str:
    """Return a metric's value in few characters."""
    if isinstance(value, list):
        return f"[{len(value)} values]" if len(value) > 4 else "[" + ", ".join(map(number_text, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
