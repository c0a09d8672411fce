"""How long do all consensus programs of a round take, and how do other solvers do on the same matrices?

    python benchmarks/consensus.py --data FOLDER

`--data` (or the environment variable FEDCOME_DATA) names a folder that holds `grams`; sizes without a measured matrix
there use Gaussian vectors. Peers solve one program after the other; where that would take long
they solve some of the programs, evenly spread, and the time for all is extrapolated and marked ~. The second table
holds our solver's worst cases, each as a multiple of the ordinary case of its size. One JSON line a call is added to
`benchmarks/results/consensus.jsonl`; `--plot` draws the first table. On a machine that does other things as well, set
OPENBLAS_NUM_THREADS=1, since threads of small products wait for each other, and measure with `--clock cpu`.
"""

import argparse
import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from consensus_cases import ordinary, worst_cases
from consensus_peers import LIMIT, LIMITED, OURS, PEERS, FloatArray, Solver
from consensus_tables import plot, print_ordinary, print_worst
from numpy.typing import NDArray
from rich.console import Console

from fedcome_flwr.core.dual_cone import solve_consensus

Clock = Callable[[], float]

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "consensus.jsonl"
ARRAYS = 16  # of shape [m, m]: at most this many exist at a time
BUDGET = 5.0  # seconds a peer may take for a size; beyond, fewer programs
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
PACKAGES = ("fedcome-flwr", "numpy", "scipy", "torchjd", "quadprog", "cvxopt", "daqp")


def timed(solver: Solver, gram: FloatArray, rows: NDArray[np.intp], clock: Clock) -> tuple[float, float]:
    """Seconds of what all programs share, and of the given programs."""
    start = clock()
    solve = solver.prepare(gram)
    prepared = clock()
    solve(rows)
    return prepared - start, clock() - prepared


def side_by_side(
    solvers: list[Solver], gram: FloatArray, repeats: int, budget: float, clock: Clock
) -> dict[str, dict[str, Any]]:
    """Median seconds for all programs; the solvers take turns, after a warm-up that also sets how many they solve."""
    m = len(gram)
    rows = {}
    for solver in solvers:
        timed(solver, gram, np.array([m - 1]), clock)
        _, two = timed(solver, gram, np.array([0, m // 2]), clock)
        count = m if solver in (OURS, LIMITED) else int(np.clip(2 * budget / repeats / two, 2, m))
        rows[solver.name] = np.linspace(0, m - 1, count).astype(int)
    seconds: dict[str, list[float]] = {solver.name: [] for solver in solvers}
    for _ in range(repeats):
        for solver in solvers:
            asked = rows[solver.name]
            shared, solving = timed(solver, gram, asked, clock)
            seconds[solver.name].append(shared + solving * m / len(asked))
    return {name: {"seconds": float(np.median(runs)), "programs": len(rows[name])} for name, runs in seconds.items()}


def check_memory(sizes: list[int]) -> None:
    needed = ARRAYS * 8 * max(sizes) ** 2
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        raise SystemExit(
            f"--sizes: {max(sizes)} clients need about {needed / 2**30:.1f} GiB of memory, "
            f"found {available / 2**30:.1f} GiB free"
        )


def usable_peers(console: Console) -> list[Solver]:
    found = []
    for peer in PEERS:
        if peer.package and find_spec(peer.package) is None:
            console.print(f"without {peer.name}: pip install {peer.package}", style="yellow")
        else:
            found.append(peer)
    return found


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Measure, write a line, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDCOME_DATA"), help="folder of data sets")
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100, 200, 400, 1000], help="numbers of clients")
    parser.add_argument("--worst", type=int, nargs="*", default=[100, 200, 400], help="sizes of the worst cases")
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="under a minute: sizes 50 and 100, worst cases at 100")
    parser.add_argument("--plot", type=Path, help="PNG file for the first table")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.worst, arguments.repeats = [50, 100], [100], 3
    if min(arguments.sizes + arguments.worst, default=2) < 2:
        raise SystemExit("--sizes, --worst: expected at least two clients")
    check_memory(arguments.sizes + arguments.worst)
    console = Console(width=120)
    data = Path(arguments.data) if arguments.data else None
    solvers = [OURS, LIMITED, *usable_peers(console)]
    logging.getLogger("fedcome_flwr").setLevel(logging.ERROR)
    clock = CLOCKS[arguments.clock]
    line: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "all",
        "load": round(os.getloadavg()[0], 1),  # what else the machine did
        "versions": versions(),
        "clock": arguments.clock,
        "repeats": arguments.repeats,
        "ordinary": {},
        "worst": {},
    }
    budget = BUDGET / 5 if arguments.quick else BUDGET
    for m in arguments.sizes:
        kind, gram = ordinary(m, data)
        line["ordinary"][str(m)] = {"matrix": kind} | side_by_side(solvers, gram, arguments.repeats, budget, clock)
        print_ordinary(console, m, line["ordinary"][str(m)])
    for m in arguments.worst:
        line["worst"][str(m)] = measured_worst(m, data, arguments.repeats, clock)
    print_worst(console, line["worst"])
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    if arguments.plot:
        plot(line["ordinary"], arguments.plot)


def measured_worst(m: int, data: Path | None, repeats: int, clock: Clock) -> dict[str, Any]:
    grams = {"ordinary": ordinary(m, data)[1]} | worst_cases(m)
    seconds: dict[str, list[list[float]]] = {name: [[], []] for name in grams}
    certified = {}
    for name, gram in grams.items():
        certified[name] = [solve_consensus(gram, influence_limit=limit).certified for limit in (None, LIMIT)]
    for _ in range(repeats):
        for name, gram in grams.items():
            for runs, limit in zip(seconds[name], (None, LIMIT), strict=True):
                start = clock()
                solve_consensus(gram, influence_limit=limit)
                runs.append(clock() - start)
    return {
        name: {"seconds": [float(np.median(runs)) for runs in seconds[name]], "certified": certified[name]}
        for name in grams
    }


if __name__ == "__main__":
    main()
