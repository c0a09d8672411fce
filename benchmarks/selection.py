"""What it costs a server to choose a round's clients and to learn from the round, beside the authors' procedure.

    python benchmarks/selection.py            # all cases, about five minutes
    python benchmarks/selection.py --quick    # under a minute
    python benchmarks/selection.py --case 100000 200 500

A case is a population, a number of clients a round, and the rounds of history that the similarity table holds. Measured
is one round, `choose` and `observe`, each case in a process of its own, which also gives its peak memory. The authors'
procedure is written from their publication and code: 0-1 lists, double swaps, 529 steps from temperature 1e4 by 0.97
down to 1e-3, then 1,000 greedy ones, the energy computed anew for every step, and a loop over the round's pairs.
JSON lines are added to `benchmarks/results/selection.jsonl`; a full run draws `docs/selection.png`.
"""

import copy
import math
import random
from typing import Any

import numpy as np
from _machine import (
    DOCS,
    MIB,
    main,
    middle,
    peak_memory,
    require_memory,
    slope,
    timed,
)
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedcome_flwr.core import ConsensusSelection, SimilarityTable

QUICK = [(100, 20, 100), (1000, 100, 100), (1_000_000, 100, 1000)]
OVER_POPULATION = [(n, 100, 1000) for n in (200, 1000, 5000, 10_000, 100_000, 1_000_000)]
OVER_CLIENTS = [(10_000, m, 100) for m in (10, 30, 100, 300, 1000)]
OVER_HISTORY = [(1_000_000, 100, rounds) for rounds in (100, 300, 3000)]
CASES = [(100, 20, 1000), *OVER_POPULATION, *OVER_CLIENTS, *OVER_HISTORY]
LARGEST_PEER = (5000, 100)  # beyond it the peer takes tens of seconds a round


def history(population: int, clients: int, rounds: int) -> SimilarityTable:
    """The table after so many rounds of uniformly drawn clients, with random similarities, built at once."""
    rng = np.random.default_rng(0)
    first, second = np.triu_indices(clients)
    pairs = np.zeros(0, dtype=np.int64)
    pending: list[NDArray[np.int64]] = []
    for number in range(rounds):
        rows = np.sort(rng.choice(population, clients, replace=False))
        pending.append(rows[first] << 32 | rows[second])
        if len(pending) == 500 or number == rounds - 1:
            pairs = np.unique(np.concatenate([pairs, *pending]))
            pending = []
    rows, columns = pairs >> 32, pairs & 2**32 - 1
    known = rows[rows == columns]  # every client that took part met itself
    keys = names(population)
    return SimilarityTable(
        {keys[row]: place for place, row in enumerate(known.tolist())},
        np.searchsorted(known, rows) << 32 | np.searchsorted(known, columns),
        np.where(rows == columns, 0.9, rng.uniform(-0.5, 0.3, len(pairs))),
        np.full(len(pairs), rounds, dtype=np.int32),
        rounds,
    )


def names(population: int) -> list[str]:
    return [f"client-{number:07d}" for number in range(population)]


class AuthorsSampler:
    """The authors' selection: an N × N table, and plain Python over it."""

    def __init__(self, similarity: NDArray[np.float64]) -> None:
        self.similarity, self.random = similarity, random.Random(0)

    def choose(self, count: int, share: float = 0.7) -> list[int]:
        annealed = self._anneal(int(share * count))
        chosen = [client for client, taken in enumerate(annealed) if taken]
        others = [client for client, taken in enumerate(annealed) if not taken]
        return chosen + self.random.sample(others, count - len(chosen))

    def observe(self, clients: list[int], cosines: NDArray[np.float64], keep: float = 0.5) -> None:
        for i, one in enumerate(clients):
            for j, other in enumerate(clients):
                self.similarity[one][other] = keep * self.similarity[one][other] + (1 - keep) * cosines[i][j]

    def _energy(self, taken: list[int]) -> float:
        members = [client for client, is_in in enumerate(taken) if is_in]
        total = 0.0
        for one in members:
            for other in members:
                total += self.similarity[other][one]
        return total

    def _swapped(self, taken: list[int]) -> list[int]:
        """A deep copy in which two clients of the set have changed places with two others."""
        after = copy.deepcopy(taken)
        members = [client for client, is_in in enumerate(taken) if is_in]
        others = [client for client, is_in in enumerate(taken) if not is_in]
        for client in self.random.sample(members, 2):
            after[client] = 0
        for client in self.random.sample(others, 2):
            after[client] = 1
        return after

    def _anneal(self, seats: int) -> list[int]:
        current = [0] * len(self.similarity)
        for client in self.random.sample(range(len(current)), seats):
            current[client] = 1
        energy = self._energy(current)
        best, best_energy = current, float(seats**2)
        temperature = 1e4
        while temperature > 1e-3:
            proposed = self._swapped(current)
            proposed_energy = self._energy(proposed)
            if proposed_energy < best_energy:
                best, best_energy = copy.deepcopy(proposed), proposed_energy
            elif (energy - proposed_energy) / temperature > math.log(self.random.random()):
                current, energy = copy.deepcopy(proposed), proposed_energy
            temperature *= 0.97
        for _ in range(1000):
            proposed = self._swapped(current)
            proposed_energy = self._energy(proposed)
            if proposed_energy < best_energy:
                best, best_energy = copy.deepcopy(proposed), proposed_energy
        return best


def memory_needed(population: int, clients: int, rounds: int, peer: bool) -> int:
    """Bytes, estimated: keys, the pairs of three tables while the history is built, looked-up squares, the peer."""
    pairs = min(rounds * clients * (clients + 1) // 2, population * (population + 1) // 2)
    looked_up = min(population, clients + 600)
    return 200 * population + 120 * pairs + 64 * looked_up**2 + 160 * MIB + (8 * population**2 if peer else 0)


def measure(population: int, clients: int, rounds: int, repeats: int) -> dict[str, Any]:
    """One case: medians of a round's seconds by part, and the peak memory before the peer was built."""
    peer = population <= LARGEST_PEER[0] and clients <= LARGEST_PEER[1]
    what = f"the case of {population} clients, {clients} a round, {rounds} rounds"
    require_memory(memory_needed(population, clients, rounds, peer), what)
    keys, table, selector = names(population), history(population, clients, rounds), ConsensusSelection()
    vectors = np.random.default_rng(1).normal(size=(clients, 10))
    gram = vectors @ vectors.T
    chosen = [selector.choose(keys, clients, table=table, rng=np.random.default_rng(seed)) for seed in range(repeats)]
    turn = iter(range(10**9))
    functions = {
        "choose": lambda: selector.choose(keys, clients, table=table, rng=np.random.default_rng(next(turn))),
        "observe": lambda: selector.observe(table, chosen[next(turn) % repeats].keys, gram),
    }
    seconds = middle(timed(functions, repeats))
    line = {
        "population": population,
        "clients": clients,
        "rounds": rounds,
        "pairs": len(table.pairs),
        "peak_mib": round(peak_memory() / MIB, 1),
        "seconds": seconds,
    }
    if peer:
        sampler = AuthorsSampler(table.among(keys))
        norms = np.sqrt(np.diagonal(gram))
        cosines = gram / norms[:, None] / norms
        side = {
            "ours": lambda: (functions["choose"](), functions["observe"]()),
            "authors": lambda: sampler.observe(sampler.choose(clients), cosines),
        }
        line["side_by_side"] = middle(timed(side, max(3, repeats // 3)))
    return line


def print_table(lines: list[dict[str, Any]]) -> None:
    table = Table(title="Selection: one round, medians")
    for heading in ("clients", "a round", "history", "pairs", "choose", "observe", "peak memory", "authors'", "ratio"):
        table.add_column(heading, justify="right")
    for line in lines:
        seconds, side = line["seconds"], line.get("side_by_side")
        table.add_row(
            f"{line['population']:,}",
            f"{line['clients']:,}",
            f"{line['rounds']:,}",
            f"{line['pairs']:,}",
            f"{1000 * seconds['choose']:.1f} ms",
            f"{1000 * seconds['observe']:.1f} ms",
            f"{line['peak_mib']:.0f} MiB",
            f"{side['authors']:.2f} s" if side else "",
            f"{side['authors'] / side['ours']:.0f}x" if side else "",
        )
    Console(width=110).print(table)


def draw(lines: list[dict[str, Any]]) -> None:
    """Seconds over the population, over the clients of a round and over the stored pairs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    stored = {(line["population"], line["clients"], line["rounds"]): line for line in lines}
    groups = [
        ("population", "clients in the federation, 100 a round, 1,000 rounds", OVER_POPULATION),
        ("clients", "clients a round, of 10,000, 100 rounds", OVER_CLIENTS),
        (
            "pairs",
            "pairs that met, of 1,000,000 clients, 100 a round",
            [*OVER_HISTORY[:2], OVER_POPULATION[-1], OVER_HISTORY[2]],
        ),
    ]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True, layout="constrained")
    for axis, (entry, label, cases) in zip(axes, groups, strict=True):
        found = [stored[case] for case in cases if case in stored]
        for part, colour in (("choose", "tab:blue"), ("observe", "tab:orange")):
            points = [(line[entry], line["seconds"][part]) for line in found]
            sizes, seconds = zip(*points, strict=True)
            axis.loglog(sizes, seconds, "o-", color=colour, label=f"{part}, slope {slope(sizes, seconds):.1f}")
        peers = [(line[entry], line["side_by_side"]["authors"]) for line in found if "side_by_side" in line]
        if len(peers) > 1 and entry == "population":
            sizes, seconds = zip(*peers, strict=True)
            axis.loglog(
                sizes, seconds, "s--", color="tab:gray", label=f"authors' code, slope {slope(sizes, seconds):.1f}"
            )
        axis.set_xlabel(label)
        axis.grid(which="major", alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("seconds a round")
    figure.suptitle("Selection; slopes through the last two points")
    figure.savefig(DOCS / "selection.png", dpi=110)


if __name__ == "__main__":
    main(
        "selection",
        measure,
        CASES,
        QUICK,
        identity=("population", "clients", "rounds"),
        repeats=9,
        packages=("fedcome-flwr", "numpy"),
        draw=draw,
        print_table=print_table,
        description=__doc__,
    )
