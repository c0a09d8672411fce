"""What the benchmarks share: side-by-side timing, memory needed and found, result lines, slopes."""

import argparse
import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
MIB = 2**20


class TooLargeError(MemoryError):
    """A case that does not fit in memory; refused before anything is allocated."""


def available_memory() -> int:
    """Bytes that a new process can take without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: free pages only, a cautious answer
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(needed: int, what: str) -> None:
    """Refuse what does not fit in memory.

    Raises
    ------
    TooLargeError
        The text says how much is needed and how much is available.
    """
    available = available_memory()
    if needed > available:
        raise TooLargeError(f"{what} needs {needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB available")


def peak_memory() -> int:
    """The most memory, in bytes, that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def timed(
    functions: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = perf_counter
) -> dict[str, list[float]]:
    """Seconds of each function's calls, the functions taking turns, after one call each that does not count.

    ``clock=process_time`` counts the processors' seconds instead, those of all threads, which other work on the machine
    disturbs less.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            started = clock()
            function()
            if repeat:
                seconds[name].append(clock() - started)
    return seconds


def middle(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in seconds.items()}


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Exponent k of the growth seconds ∝ size^k, through the two largest sizes."""
    x, y = np.log(sizes[-2:]), np.log(seconds[-2:])
    return float((y[1] - y[0]) / (x[1] - x[0]))


def environment(*packages: str) -> dict[str, Any]:
    """When and on what: for every result line."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # what else the machine did
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "all"),
        "versions": {"python": platform.python_version()} | {package: version(package) for package in packages},
    }


def main(
    name: str,
    measure: Callable[..., dict[str, Any]],
    cases: Sequence[tuple[int, ...]],
    quick: Sequence[tuple[int, ...]],
    *,
    identity: Sequence[str],
    repeats: int,
    packages: Sequence[str],
    draw: Callable[[list[dict[str, Any]]], None],
    print_table: Callable[[list[dict[str, Any]]], None],
    description: str | None,
) -> None:
    """The command line of a benchmark over cases: measure the chosen ones, store, print and draw.

    Parameters
    ----------
    measure
        ``measure(*case, repeats)`` gives a case's result line; each runs in a process of its own.
    identity
        The entries of a line that name its case, in the order of the case's numbers.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three cases, under a minute, nothing stored or drawn")
    words = tuple(word.upper() for word in identity)
    parser.add_argument("--case", nargs=len(words), type=int, metavar=words, help="this case only, not drawn")
    parser.add_argument("--repeats", type=int, help=f"timed calls of each part (default: {repeats}, quick: 3)")
    parser.add_argument("--table", action="store_true", help="print and draw the stored results, measure nothing")
    arguments = parser.parse_args()
    chosen = [tuple(arguments.case)] if arguments.case else quick if arguments.quick else cases
    known = environment(*packages)
    lines = []
    if not arguments.table:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            for case in chosen:
                try:
                    times = arguments.repeats or (3 if arguments.quick else repeats)
                    lines.append({**known, **pool.submit(measure, *case, times).result()})
                except TooLargeError as error:
                    parser.exit(2, f"{error}\n") if arguments.case else print(f"left out: {error}")
        if not arguments.quick:
            save(name, lines)
    if not arguments.quick and not arguments.case:
        lines = latest(name, *identity)
        draw(lines)
    print_table(lines)


def save(name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Add the lines to ``benchmarks/results/<name>.jsonl``."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def latest(name: str, *identity: str) -> list[dict[str, Any]]:
    """The stored lines, of each case (told apart by the given entries) the last."""
    path = RESULTS / f"{name}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return list({tuple(line[entry] for entry in identity): line for line in lines}.values())
