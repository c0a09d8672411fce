"""Influence limits on recorded rounds: how much is lost without, and how much is kept with, hostile clients.

    python benchmarks/influence_limit.py --data FOLDER

`--data` (or the environment variable FEDCOME_DATA) names a folder with `grams/mnist_*_clients.npy`: inner products of
the pseudo-gradients of one round. Random subsets give the rounds of other sizes. Hostile clients replace honest ones
and send minus the honest mean. No training, so it takes a minute: what a round does to the honest clients, not where
training ends (see robustness.py). One JSON line a cell is written to `benchmarks/results/influence-limit.jsonl`.
"""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedcome_flwr.core import solve_consensus
from fedcome_flwr.core.round_report import HURT_BELOW

RESULTS = Path(__file__).parent / "results" / "influence-limit.jsonl"
LIMITS = (None, 1.0, 0.3, 0.1, 0.03, 0.01)
RULE = 3.0  # over the number of clients: the last column
HOSTILE = {10: (0, 1, 2), 20: (0, 1, 2, 4), 50: (0, 1, 5, 10), 100: (0, 1, 5, 10, 20), 200: (0, 1, 10, 20)}
DRAWS = 10

Gram = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """Means over the draws.

    Attributes
    ----------
    progress
        ⟨u, m⟩ / ‖m‖² with m the honest clients' mean: 1 is what FedAvg makes without hostile clients.
    length
        ‖u‖ / ‖m‖.
    hurt
        Share of honest clients hurt to first order.
    """

    clients: int
    hostile: int
    limit: float | None
    progress: float
    length: float
    hurt: float


def attacked(gram: Gram, hostile: int) -> Gram:
    """The Gram matrix of the honest clients and of as many copies of minus their mean."""
    honest = len(gram)
    rows = np.vstack([np.eye(honest), np.full((hostile, honest), -1 / honest)])
    return np.asarray(rows @ gram @ rows.T)


def one_round(gram: Gram, hostile: int, limit: float | None) -> tuple[float, float, float]:
    """Progress, length and share of honest clients hurt; all clients weigh alike."""
    honest = len(gram) - hostile
    solution = solve_consensus(gram, influence_limit=limit)
    coefficients = solution.coefficients.mean(axis=0)
    mean = np.r_[np.full(honest, 1 / honest), np.zeros(hostile)]
    square, products = float(mean @ gram @ mean), gram[:honest] @ coefficients
    norms = np.sqrt(np.diagonal(gram))
    length = float(np.sqrt(max(0.0, coefficients @ gram @ coefficients)))
    hurt = products / norms[:honest] / norms.mean() < HURT_BELOW
    return float(mean[:honest] @ products) / square, length / np.sqrt(square), float(hurt.mean())


def cells(grams: dict[int, Gram]) -> Iterator[Cell]:
    """All of them; a subset comes from the smallest recorded round that has enough clients."""
    for clients, numbers in HOSTILE.items():
        whole = grams[min(size for size in grams if size >= clients)]
        for hostile in numbers:
            draws = [
                np.random.default_rng((clients, draw)).permutation(len(whole))[: clients - hostile]
                for draw in range(DRAWS if clients < len(whole) or hostile else 1)
            ]
            rounds = [attacked(whole[np.ix_(draw, draw)], hostile) for draw in draws]
            for limit in (*LIMITS, RULE / clients):
                means = np.mean([one_round(gram, hostile, limit) for gram in rounds], axis=0)
                yield Cell(clients, hostile, limit, *(float(f"{value:.4g}") for value in means))


def main() -> None:
    """Write the lines and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDCOME_DATA"), help="folder of data sets")
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("--data: expected a folder that holds grams/mnist_100_clients.npy; found none")
    grams = {size: np.load(Path(arguments.data) / "grams" / f"mnist_{size}_clients.npy") for size in (100, 200)}
    lines = list(cells(grams))
    RESULTS.parent.mkdir(exist_ok=True)
    versions = {package: version(package) for package in ("fedcome-flwr", "numpy", "scipy")}
    RESULTS.write_text("".join(json.dumps(asdict(line) | {"versions": versions}) + "\n" for line in lines))
    table = Table(title="progress (length; honest clients hurt)", caption="progress 1: FedAvg without hostile clients")
    for heading in ("clients", "hostile", *(f"limit {limit}" for limit in LIMITS), f"{RULE:g} / clients"):
        table.add_column(heading, justify="right")
    for clients, numbers in HOSTILE.items():
        for hostile in numbers:
            row = [line for line in lines if (line.clients, line.hostile) == (clients, hostile)]
            shown = (f"{line.progress:.2f} ({line.length:.2f}; {100 * line.hurt:.1f} %)" for line in row)
            table.add_row(str(clients), str(hostile), *shown)
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
