"""An end to a training in which nobody's reply can be used any more."""

from ..core.checks import check_at_least
from ..core.round_report import RoundReport


class NoUsableReplyError(RuntimeError):
    """Round after round no client's reply could be used; the text gives the first reason."""


class Patience:
    """Counts the rounds in a row that changed nothing; ``None`` rounds of patience never end."""

    def __init__(self, rounds: int | None) -> None:
        check_at_least("patience", rounds if rounds is not None else 1, 1)
        self.rounds = rounds
        self.forget()

    def forget(self) -> None:
        """Begin to count anew."""
        self._count = 0
        self._first_reason = ""

    def learn(self, report: RoundReport) -> None:
        """Count the round.

        Raises
        ------
        NoUsableReplyError
            It was the last one of the patience.
        """
        if report.unchanged is None:
            self.forget()
            return
        self._first_reason = self._first_reason or first_reason(report)
        self._count += 1
        if self.rounds is not None and self._count >= self.rounds:
            raise NoUsableReplyError(
                f"rounds {report.round - self._count + 1} to {report.round} changed nothing (patience={self.rounds}); "
                f"the first reason: {self._first_reason}"
            )


def first_reason(report: RoundReport) -> str:
    """Why a round changed nothing, in words that name a client."""
    for key, reason in report.left_out.items():
        return f"client {key}: {reason}"
    if report.missing:
        return f"no reply from {', '.join(report.missing[:5])}" + (", …" if len(report.missing) > 5 else "")
    return report.unchanged or "nobody was asked"
