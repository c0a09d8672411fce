"""Hostile clients: what they do to the training under each defence.

    python benchmarks/robustness.py --data FOLDER

MNIST with two classes a client, all clients in every round. `--data` (or the environment variable FEDCOME_DATA) names
a folder that holds `mnist`; without it the data set's name on the Hugging Face hub is used. One JSON line a run is
added to `benchmarks/results/robustness.jsonl`, and a run that is there already is not run again. `--table` only prints
what is there; `--quick` shows in a minute that everything works, and keeps nothing.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from hostile import Run, execute
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results" / "robustness.jsonl"
HUB_NAME = "ylecun/mnist"
SEEDS = (0, 1, 2)
DEFENCES = (
    "FedCOME",
    "limit 0.1",
    "norm bound 2",
    "limit 0.1, norm bound 2",
    "FedAvg",
    "FedMedian",
    "FedTrimmedAvg",
    "MultiKrum",
    "Bulyan",
)
ATTACKS = (
    ("clean", 0),
    ("minus mean", 1),
    ("minus mean", 4),
    ("x 100", 1),
    ("x 100", 4),
    ("sign flip", 4),
    ("label flip", 4),
    ("noise", 4),
)
LIMITS = ("FedCOME", "limit 1.0", "limit 0.3", "limit 0.1", "limit 0.03")
HOSTILE = {20: (0, 1, 2), 10: (0, 1), 100: (0, 1, 5, 10)}  # none, one, and as many as 5 % and 10 % are
LIES = {
    "false loss": ("FedCOME", "FedCOME, step 1"),
    "false count": ("FedAvg", "FedAvg, uniform", "FedCOME", "FedCOME, uniform", "limit 0.1"),
}

Line = dict[str, Any]
Cells = list[tuple[str, list[Run]]]


def attacks() -> dict[str, Cells]:
    """Rows of the first table: defence, and one run for each attack."""
    return {name: [(_title(a, f), [Run(20, a, f, name, s) for s in SEEDS]) for a, f in ATTACKS] for name in DEFENCES}


def limits() -> dict[str, Cells]:
    """Rows of the second table: number of clients and limit, and one run for each number of attackers."""
    return {
        f"{clients} clients, {name}": [
            (_title("minus mean" if f else "clean", f), [_limit_run(clients, f, name, s) for s in SEEDS]) for f in some
        ]
        for clients, some in HOSTILE.items()
        for name in LIMITS
    }


def lies() -> dict[str, Cells]:
    """Rows of the third table: a client that lies about its numbers."""
    return {
        f"{attack}, {name}": [(_title(attack, 1), [Run(20, attack, 1, name, s) for s in SEEDS])]
        for attack, names in LIES.items()
        for name in names
    }


def _limit_run(clients: int, hostile: int, name: str, seed: int) -> Run:
    return Run(clients, "minus mean" if hostile else "clean", hostile, name, seed)


def _title(attack: str, hostile: int) -> str:
    return f"{attack}, {hostile}" if hostile else attack


def all_runs() -> list[Run]:
    """All runs once; seed by seed, so that one that is cut short has all cells of the first; cheap ones early."""
    tables = (attacks(), lies(), limits())
    runs = dict.fromkeys(run for table in tables for cells in table.values() for _, some in cells for run in some)
    return sorted(runs, key=lambda run: (run.seed * (run.clients > 10), list(HOSTILE).index(run.clients)))


def quick_runs() -> list[Run]:
    """Every attack and every defence once, on few clients and rounds."""
    defences = dict.fromkeys(run.defence for run in all_runs())
    pairs = [("minus mean", name) for name in defences] + [(a, "FedCOME") for a in (*(a for a, _ in ATTACKS), *LIES)]
    return [
        replace(Run(10, attack, int(attack != "clean"), name, 0), rounds=3) for attack, name in dict.fromkeys(pairs)
    ]


def stored() -> dict[Run, Line]:
    """The kept runs."""
    names = [field.name for field in fields(Run)]
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {Run(**{name: line[name] for name in names}): line for line in lines}


def run_all(todo: list[Run], dataset: str, jobs: int, keep: Callable[[Line], None]) -> None:
    """Run them in processes of their own, and hand each line on as soon as it is there."""
    # For the processes below: runs side by side share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    versions = {package: version(package) for package in ("fedcome-flwr", "flwr", "torch", "numpy")}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(execute, run, dataset) for run in todo]
        for number, future in enumerate(as_completed(futures), start=1):
            line = future.result() | {"versions": versions}
            keep(line)
            what = ", ".join(str(line[field.name]) for field in fields(Run))
            print(f"{number} of {len(todo)}: {what}: {line['accuracy']:.3f}", file=sys.stderr, flush=True)


def print_tables(kept: dict[Run, Line]) -> None:
    """Accuracy, worst honest client and length of the step; means and deviations over the seeds that are there."""
    console = Console(width=190)
    for title, table in (
        ("20 clients: accuracy of the honest ones", attacks()),
        ("A client that lies", lies()),
    ):
        console.print(_table(title, table, lambda lines: _spread(lines, "accuracy"), kept))
    console.print(_table("20 clients: worst honest client", attacks(), lambda lines: _spread(lines, "worst"), kept))
    console.print(_table("20 clients: step / honest mean", attacks(), _ratio, kept))
    for clients in HOSTILE:
        rows = {name: cells for name, cells in limits().items() if name.startswith(f"{clients} ")}
        console.print(
            _table(
                "accuracy; honest clients hurt, %, over all rounds",
                rows,
                lambda lines: f"{_spread(lines, 'accuracy')}; {100 * _mean(lines, 'hurt'):.1f} %",
                kept,
            )
        )
    console.print(_table("Share of the largest veto; how often a hostile client's", attacks(), _veto, kept))


def _table(title: str, rows: dict[str, Cells], show: Callable[[list[Line]], str], kept: dict[Run, Line]) -> Table:
    table = Table(title=title)
    table.add_column("")
    for heading in dict.fromkeys(name for cells in rows.values() for name, _ in cells):
        table.add_column(heading, justify="right")
    headings = [str(column.header) for column in table.columns[1:]]
    for name, cells in rows.items():
        found = {heading: [kept[run] for run in runs if run in kept] for heading, runs in cells}
        table.add_row(name, *((show(found[h]) if found[h] else "open") if h in found else "" for h in headings))
    return table


def _mean(lines: Iterable[Line], key: str) -> float:
    return float(np.mean([line[key] for line in lines]))


def _spread(lines: list[Line], key: str) -> str:
    values = [line[key] for line in lines]
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else " (1 seed)")


def _ratio(lines: list[Line]) -> str:
    stuck = sum(line["stuck"] for line in lines)
    return f"{_mean(lines, 'ratio'):.2g}" + (f", stuck {stuck}/{len(lines)}" if stuck else "")


def _veto(lines: list[Line]) -> str:
    if "largest_veto_share" not in lines[0]:
        return ""
    return f"{_mean(lines, 'largest_veto_share'):.2f}; {100 * _mean(lines, 'largest_veto_is_hostile'):.0f} %"


def main() -> None:
    """Run what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDCOME_DATA"), help="folder of data sets")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the kept results and run nothing")
    parser.add_argument("--quick", action="store_true", help="every attack and defence once, for three rounds")
    arguments = parser.parse_args()
    dataset = str(Path(arguments.data).resolve() / "mnist") if arguments.data else HUB_NAME
    if arguments.quick:
        run_all(quick_runs(), dataset, arguments.jobs, lambda line: None)
        return

    def keep(line: Line) -> None:
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")

    if not arguments.table:
        run_all([run for run in all_runs() if run not in stored()], dataset, arguments.jobs, keep)
    print_tables(stored())


if __name__ == "__main__":
    main()
