"""Several callbacks as one."""

from ..core.round_report import OnRound, RoundReport


def together(*callbacks: OnRound) -> OnRound:
    """One ``on_round`` that calls each of these, in this order; training ends when any of them says so.

    ::

        on_round=together(JsonLines("run.jsonl"), TensorBoard("logs/run"), stop_early)
    """

    def on_round(report: RoundReport) -> bool:
        ends = [callback(report) for callback in callbacks]  # all are called, whatever the first says
        return any(ends)

    return on_round
