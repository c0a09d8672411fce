"""What FedCOME does on real data: a few studies, each a list of runs of the quickstart app.

    python benchmarks/learning.py mnist --data FOLDER --jobs 2

`--data` (or the environment variable FEDCOME_DATA) names a folder that holds `mnist` and `cifar10`; without it the
data sets' names on the Hugging Face hub are used. One JSON line a run is written to `benchmarks/results/`, and a run
that is there already, with the same configuration, is not run again. `--table` only prints what is there.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
APP = HERE.parent / "examples" / "quickstart"
RESULTS = HERE / "results"
HUB_NAMES = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10"}
CLIENTS = 100
RISE = 1e-6  # below this a change of a float32 loss is rounding
PAPER = {"class-assignment": "random", "client-weights": "uniform", "selection": "uniform"}

FEDAVG = {"strategy": "fedavg"}
STEP_ONE = {"strategy": "fedcome", "server-step": "1.0"}
ADAPTIVE = {"strategy": "fedcome", "server-step": "adaptive"}
CONTROLS = {
    "FedCOME at the mean's norm": {"weighting": "consensus-at-mean-norm"},
    "FedAvg at FedCOME's norm": {"weighting": "mean-at-consensus-norm"},
}


@dataclass(frozen=True)
class Run:
    """One run: its study, its name in the table, and what differs from the quickstart's defaults."""

    study: str
    name: str
    dataset: str
    config: dict[str, Any]

    def identity(self) -> str:
        return json.dumps([self.study, self.name, self.dataset, self.config], sort_keys=True)


def studies() -> dict[str, list[Run]]:
    """All runs by study."""
    small = {"batch-size": 0, "learning-rate": 0.01, "num-server-rounds": 60}
    methods = {"FedAvg": FEDAVG, "FedCOME, step 1": STEP_ONE, "FedCOME, adaptive": ADAPTIVE}
    few_images = {"images-per-client": 50, "global-test-every": 10}
    runs = [
        Run(f"figure2-{dataset}", name, dataset, PAPER | small | extra | method)
        for dataset, extra in (("mnist", {}), ("cifar10", few_images))
        for name, method in methods.items()
    ]
    runs += [
        Run("mnist", name, "mnist", PAPER | {"num-server-rounds": 30} | method)
        for name, method in (methods | CONTROLS).items()
    ]
    runs += [
        Run(
            "mnist-partial",
            f"{name}, {selection}",
            "mnist",
            PAPER
            | {"num-server-rounds": 100, "fraction-train": 0.1, "global-test-every": 100}
            | method
            | {"selection": selection, "seed": seed},
        )
        for name, method in methods.items()
        for selection in ("uniform", "consensus")
        for seed in (0, 1, 2)
    ]
    # How much consensus selection gains depends on how evenly the classes are spread over the clients.
    runs += [
        Run(
            "mnist-selection",
            f"{assignment} classes, {selection}",
            "mnist",
            PAPER
            | {
                "num-server-rounds": 100,
                "fraction-train": 0.1,
                "global-test-every": 100,
                "class-assignment": assignment,
            }
            | STEP_ONE
            | {"selection": selection, "seed": seed},
        )
        for assignment in ("deterministic", "first-deterministic")
        for selection in ("uniform", "consensus")
        for seed in (0, 1, 2)
    ]
    # Table 3 of the paper in small: every method with either selection.
    compared = {
        "FedAvg": FEDAVG,
        "FedProx": {"strategy": "fedprox"},
        "SCAFFOLD": {"strategy": "scaffold"},
        "FedDyn": {"strategy": "feddyn", "feddyn-alpha": 0.1},
        "FedFV": {"strategy": "fedfv"},
        "FedDC": {"strategy": "feddc"},
        "FedCOME": STEP_ONE,
    }
    runs += [
        Run(
            "mnist-methods",
            f"{name}, {selection}",
            "mnist",
            PAPER
            | {"num-server-rounds": 100, "fraction-train": 0.2, "global-test-every": 100}
            | method
            | {"selection": selection},
        )
        for name, method in compared.items()
        for selection in ("uniform", "consensus")
    ]
    runs += [
        Run("cifar10", name, "cifar10", PAPER | few_images | {"num-server-rounds": 50} | method)
        for name, method in methods.items()
    ]
    return {study: [run for run in runs if run.study == study] for study in dict.fromkeys(run.study for run in runs)}


def execute(run: Run, data: Path | None) -> dict[str, Any]:
    """Run it and return what is kept of it."""
    from fedcome_flwr.report import read_rounds
    from fedcome_flwr.simulation import run_app

    logging.getLogger("flwr").setLevel(logging.WARNING)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "rounds.jsonl"
        run_app(
            APP,
            num_supernodes=CLIENTS,
            run_config=run.config
            | {"dataset": str(data / run.dataset) if data else HUB_NAMES[run.dataset], "report": str(report)},
            seed=run.config.get("seed", 0),
        )
        rounds = read_rounds(report)
    return {
        "study": run.study,
        "name": run.name,
        "dataset": run.dataset,
        "config": run.config,
        "versions": {package: version(package) for package in ("fedcome-flwr", "flwr", "torch", "numpy")},
        "seconds": round(time.perf_counter() - started, 1),
        "rounds": {name: [_short(value) for value in values] for name, values in _columns(rounds).items()},
    }


def _columns(rounds: list[dict[str, Any]]) -> dict[str, list[Any]]:
    kept = ("hurt_by_mean", "hurt_by_direction", "smallest_product", "norm_ratio", "server_step", "smoothness_limit")
    accuracies = [[client["accuracy"] for client in report["evaluations"].values()] for report in rounds]
    shares = [[client["num-examples"] for client in report["evaluations"].values()] for report in rounds]
    return {
        "accuracy": [float(np.average(a, weights=s)) for a, s in zip(accuracies, shares, strict=True)],
        "worst_client": [min(values) for values in accuracies],
        "global_accuracy": [report["server_metrics"].get("accuracy") for report in rounds],
        "loss": [
            float(np.average([report["client_metrics"][key]["objective"] for key in report["clients"]]))
            for report in rounds
        ],
        "rises": list(_rises(rounds)),
        "uncertified": [int(report["certified"] is False) for report in rounds],
        "left_out": [len(report["left_out"]) for report in rounds],
        **{name: [report[name] for report in rounds] for name in kept},
    }


def _rises(rounds: list[dict[str, Any]]) -> Iterator[int]:
    """Of the clients of a round, how many find their own loss above that of their last round."""
    last: dict[str, float] = {}
    for report in rounds:
        now = {key: report["client_metrics"][key]["objective"] for key in report["clients"]}
        yield sum(loss > last[key] + RISE for key, loss in now.items() if key in last)
        last |= now


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def stored(study: str) -> dict[str, dict[str, Any]]:
    """The kept runs of a study by their identity."""
    path = RESULTS / f"learning-{study}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {Run(line["study"], line["name"], line["dataset"], line["config"]).identity(): line for line in lines}


def print_table(study: str, runs: list[Run]) -> None:
    """One line a name: means and deviations over its seeds."""
    from rich.console import Console
    from rich.table import Table

    kept = stored(study)
    table = Table(title=study)
    for heading in ("", "seeds", "last ten rounds", "final", "worst client", "own loss rose", "step", "seconds"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in dict.fromkeys(run.name for run in runs):
        lines = [kept[run.identity()] for run in runs if run.name == name and run.identity() in kept]
        if not lines:
            table.add_row(name, "0", *["open"] * 6)
            continue
        rounds = [line["rounds"] for line in lines]
        table.add_row(
            name,
            str(len(lines)),
            _spread([float(np.mean(r["accuracy"][-10:])) for r in rounds]),
            _spread([r["accuracy"][-1] for r in rounds]),
            _spread([r["worst_client"][-1] for r in rounds]),
            _spread([sum(r["rises"]) for r in rounds], "{:.0f}"),
            f"{min(min(r['server_step']) for r in rounds):.2f} to {max(max(r['server_step']) for r in rounds):.2f}",
            _spread([line["seconds"] for line in lines], "{:.0f}"),
        )
    Console(width=130).print(table)


def _spread(values: list[float], form: str = "{:.3f}") -> str:
    mean = form.format(np.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(np.std(values, ddof=1))}"


def main() -> None:
    """Run or print the chosen studies."""
    known = studies()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="*", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDCOME_DATA"), help="folder of data sets")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the kept results and run nothing")
    arguments = parser.parse_args()
    chosen = arguments.study or list(known)
    if unknown := [study for study in chosen if study not in known]:
        parser.error(f"study: expected some of {', '.join(known)}; found {', '.join(unknown)}")
    data = Path(arguments.data).resolve() if arguments.data else None
    if not arguments.table:
        todo = [run for study in chosen for run in known[study] if run.identity() not in stored(study)]
        RESULTS.mkdir(exist_ok=True)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes below: runs side by side share the cores
        with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            futures = {pool.submit(execute, run, data): run for run in todo}
            for number, future in enumerate(as_completed(futures), start=1):
                line = future.result()
                with (RESULTS / f"learning-{line['study']}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(
                    f"{number} of {len(todo)}: {line['study']}, {line['name']}, seed {line['config'].get('seed', 0)}: "
                    f"accuracy {line['rounds']['accuracy'][-1]:.4f}, {line['seconds']:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    for study in chosen:
        print_table(study, known[study])


if __name__ == "__main__":
    main()
