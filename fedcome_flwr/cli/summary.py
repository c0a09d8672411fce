"""What `fedcome run` prints at the end."""

import sys

from flwr.app import MetricRecord
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..simulation.result import RunResult
from .rounds import first_line, number_text, replies_text


def print_summary(run: RunResult) -> None:
    """Print the last metrics of the last strategy, the time, and how many replies were errors."""
    if run.results:
        result = run.results[-1]
        columns = {
            "train": result.train_metrics_clientapp,
            "evaluate, clients": result.evaluate_metrics_clientapp,
            "evaluate, server": result.evaluate_metrics_serverapp,
        }
        _print_metrics({name: rounds for name, rounds in columns.items() if rounds})
    print(f"finished in {run.seconds.total:.2f} s, {replies_text(run.num_replies, run.num_errors)}")
    if run.first_error is not None:
        print(f"first error: {first_line(run.first_error)}")


def _print_metrics(columns: dict[str, dict[int, MetricRecord]]) -> None:
    if not columns:
        return
    last = {name: (max(rounds), rounds[max(rounds)]) for name, rounds in columns.items()}
    table = Table("metric", box=SIMPLE_HEAD, pad_edge=False)
    for name, (server_round, _) in last.items():
        table.add_column(f"{name}\nround {server_round}", justify="right")
    for metric in dict.fromkeys(metric for _, metrics in last.values() for metric in metrics):
        table.add_row(
            metric,
            *(number_text(metrics[metric]) if metric in metrics else "" for _, metrics in last.values()),
        )
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
    else:  # for a file or another program: no colours, no padding, nothing broken at 80 characters
        console = Console(highlight=False, force_terminal=False, no_color=True, width=200)
        with console.capture() as capture:
            console.print(table)
        print("\n".join(line.rstrip() for line in capture.get().splitlines()))
