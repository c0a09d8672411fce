"""What the benchmarks share: side-by-side timing, memory needed and found, result lines, slopes."""

import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
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
