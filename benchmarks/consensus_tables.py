"""What `consensus.py` has measured, as tables and as a plot."""

from pathlib import Path
from typing import Any

import numpy as np
from consensus_peers import LIMIT, OURS
from rich.console import Console
from rich.table import Table


def print_ordinary(console: Console, m: int, row: dict[str, Any]) -> None:
    table = Table(title=f"{m} clients, {row['matrix']} Gram matrix: all {m} programs")
    for heading in ("solver", "milliseconds", "times ours", "programs solved"):
        table.add_column(heading, justify="left" if heading == "solver" else "right")
    for name, run in row.items():
        if name != "matrix":
            about = "~" if run["programs"] < m else ""
            ratio = run["seconds"] / row[OURS.name]["seconds"]
            table.add_row(name, f"{about}{1e3 * run['seconds']:.1f}", f"{about}{ratio:.1f}", str(run["programs"]))
    console.print(table)


def print_worst(console: Console, worst: dict[str, Any]) -> None:
    table = Table(title=f"our worst cases: milliseconds (times the ordinary case), without limit | limit {LIMIT}")
    table.add_column("case")
    for m in worst:
        table.add_column(f"{m} clients", justify="right")
    for name in next(iter(worst.values()), {}):
        cells = []
        for rows in worst.values():
            pairs = zip(rows[name]["seconds"], rows["ordinary"]["seconds"], rows[name]["certified"], strict=True)
            cells.append(" | ".join(f"{1e3 * s:.0f} ({s / o:.1f}){'' if ok else ' uncertified'}" for s, o, ok in pairs))
        table.add_row(name, *cells)
    console.print(table)


def plot(rows: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    sizes = np.array([int(m) for m in rows])
    for name in [name for name in rows[str(sizes[-1])] if name != "matrix"]:
        seconds = [rows[str(m)][name]["seconds"] for m in sizes]
        slope = np.polyfit(np.log(sizes[-3:]), np.log(seconds[-3:]), 1)[0]
        axes.loglog(sizes, seconds, "o-", label=f"{name}: slope {slope:.1f}", lw=2.5 if name in (OURS.name,) else 1.2)
    first = rows[str(sizes[0])][OURS.name]["seconds"]
    axes.loglog(sizes, first * (sizes / sizes[0]) ** 3, "k:", lw=1, label="m³: one product of two [m, m] matrices")
    axes.set(xlabel="clients m", ylabel="seconds for all m programs", title="All consensus programs of a round")
    axes.set_xticks(sizes, [str(m) for m in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
