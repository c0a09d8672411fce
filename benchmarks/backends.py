"""The quickstart in one process and on Ray: do they give the same model, and how long does each take?

    python benchmarks/backends.py --data FOLDER

`--data` (or the environment variable FEDCOME_DATA) names a folder that holds `mnist`; without it scikit-learn's digits
are used. One JSON line a call is added to `benchmarks/results/backends.jsonl`.
"""

import argparse
import json
import logging
import os
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedcome_flwr.simulation import RunObserver, RunResult, run_app

HERE = Path(__file__).parent
APP = HERE.parent / "examples" / "quickstart"
RESULTS = HERE / "results" / "backends.jsonl"
BACKENDS = ("inline", "ray")


class RoundTimes(RunObserver):
    """When each round was over."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def aggregated(self, phase: str, server_round: int, metrics: Any) -> None:
        if phase == "server":  # the quickstart's last act of a round; round 0 is the model before training
            self.at.append(time.perf_counter())


def measured(backend: str, clients: int, config: dict[str, Any]) -> tuple[RunResult, dict[str, float]]:
    """A run, and its seconds: in all, and per round after the first, which is without what is loaded once."""
    times = RoundTimes()
    run = run_app(APP, num_supernodes=clients, run_config=config, seed=0, backend=backend, observer=times)
    assert run.num_errors == 0, run.first_error
    later_rounds = np.diff(times.at[1:])
    return run, {"total": round(run.seconds.total, 1), "later_round": round(float(np.median(later_rounds)), 3)}


def main() -> None:
    """Run both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDCOME_DATA"), help="folder of data sets")
    parser.add_argument("--clients", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--fraction", type=float, default=0.5, help="of the clients in each round (%(default)s)")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    dataset = str(Path(arguments.data).resolve() / "mnist") if arguments.data else "digits"
    config = {"num-server-rounds": arguments.rounds, "fraction-train": arguments.fraction, "selection": "consensus"}

    runs = {name: measured(name, arguments.clients, config | {"dataset": dataset}) for name in BACKENDS}
    inline, ray = (runs[name][0].results[0] for name in BACKENDS)
    difference = max(
        float(np.abs(array.numpy() - ray.arrays[name].numpy()).max()) for name, array in inline.arrays.items()
    )
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "dataset": Path(dataset).name,
        "clients": arguments.clients,
        "config": config,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # what else the machine did
        "versions": {package: version(package) for package in ("fedcome-flwr", "flwr", "ray", "torch", "numpy")},
        "largest_difference": difference,
        "seconds": {name: seconds for name, (_, seconds) in runs.items()},
        "accuracy": {
            name: run.results[0].evaluate_metrics_serverapp[arguments.rounds]["accuracy"]
            for name, (run, _) in runs.items()
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print_table(line)


def print_table(line: dict[str, Any]) -> None:
    title = f"{line['dataset']}, {line['clients']} clients, {line['config']['num-server-rounds']} rounds"
    table = Table(title=title, caption=f"largest difference of the final arrays: {line['largest_difference']:.1e}")
    for heading in ("backend", "seconds", "a later round", "accuracy"):
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    for name in BACKENDS:
        seconds = line["seconds"][name]
        table.add_row(name, f"{seconds['total']:.1f}", f"{seconds['later_round']:.2f}", f"{line['accuracy'][name]:.4f}")
    Console(width=80).print(table)


if __name__ == "__main__":
    main()
