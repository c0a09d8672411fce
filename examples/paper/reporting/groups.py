"""Runs that differ in nothing but their seed, and the numbers that a comparison shows of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from examples.paper import store
from examples.paper.runs import Run
from examples.paper.store import Record

TARGET_SHARE = 0.98  # "a fixed accuracy": this share of what FedAvg ends with, seed by seed


@dataclass(frozen=True)
class Group:
    """The runs of one cell and those of them that are kept, by seed."""

    first: Run
    planned: int
    records: dict[int, Record]

    @property
    def seeds(self) -> str:
        """How many of the planned seeds are there."""
        return f"{len(self.records)} of {self.planned}"

    def values(self, measure: Callable[[Record], float | None]) -> list[float]:
        """A number of every kept run that has it."""
        found = [measure(record) for record in self.records.values()]
        return [value for value in found if value is not None]


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The cells in the order of their first runs."""
    cells: dict[str, list[Run]] = {}
    for run in runs:
        settings = {key: value for key, value in run.config.items() if key != "seed"}
        cells.setdefault(repr((run.study, run.dataset, run.arm, sorted(settings.items()))), []).append(run)
    groups = []
    for members in cells.values():
        loaded = {run.seed: store.load(run.name) for run in members}
        records = {seed: record for seed, record in loaded.items() if record is not None}
        groups.append(Group(members[0], len(members), records))
    return groups


def by_dataset(runs: Sequence[Run]) -> dict[str, list[Group]]:
    """The cells of each data set."""
    found: dict[str, list[Group]] = {}
    for group in grouped(runs):
        found.setdefault(group.first.dataset, []).append(group)
    return found


def diverged(record: Record) -> bool:
    """Whether the clients' mean loss ended at ten times its first value or more."""
    losses = [loss for loss in record.column("loss") if loss is not None]
    return bool(losses) and losses[-1] >= 10 * losses[0]


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Mean ± deviation over seeds; ``open`` where there is none."""
    if not values:
        return "open"
    mean = form.format(np.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(np.std(values, ddof=1))}"


def paired_difference(group: Group, other: Group) -> str:
    """Mean difference in accuracy over the seeds that both have, with its 95 % interval (Student's t)."""
    low, mean, high = paired_interval(group, other)
    if math.isnan(mean):
        return "open"
    return f"{mean:+.3f}" if math.isnan(low) else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def paired_interval(group: Group, other: Group) -> tuple[float, float, float]:
    """Lower end, mean and upper end; the ends are NaN with one seed, all are NaN with none."""
    shared = sorted(group.records.keys() & other.records.keys())
    if not shared:
        return (math.nan,) * 3
    differences = [group.records[s].final_accuracy - other.records[s].final_accuracy for s in shared]
    mean = float(np.mean(differences))
    if len(shared) == 1:
        return math.nan, mean, math.nan
    half = float(stats.t.ppf(0.975, len(shared) - 1) * stats.sem(differences))
    return mean - half, mean, mean + half


def rounds_to(record: Record, accuracy: float) -> int | None:
    """The first round from which the mean of three rounds is at least ``accuracy``; ``None`` if there is none."""
    found = np.convolve([line["accuracy"] for line in record.rounds], np.full(3, 1 / 3), mode="valid")
    reached = np.flatnonzero(found >= accuracy)
    return int(reached[0]) + 3 if len(reached) else None


def reached(group: Group, reference: Group) -> tuple[str, str]:
    """Rounds, and megabytes to and from all clients together, until FedAvg's fixed accuracy is reached."""
    rounds: list[float] = []
    sizes: list[float] = []
    for seed in group.records.keys() & reference.records.keys():
        record = group.records[seed]
        count = rounds_to(record, TARGET_SHARE * reference.records[seed].final_accuracy)
        if count is None:
            return "not reached", "not reached"
        rounds.append(count)
        lines = record.rounds[:count]
        sizes.append(sum(line.get("bytes_up", 0) + line.get("bytes_down", 0) for line in lines) / 1e6)
    return spread(rounds, "{:.0f}"), spread(sizes, "{:.0f}")


def total_rises(record: Record) -> float:
    """Of all (client, round) pairs, how many found their own loss risen, in percent."""
    return 100 * sum(record.column("rises")) / max(1, sum(record.column("rises_of")))


def deepest_fall(record: Record) -> float:
    """How far the accuracy ever was below one that it had before."""
    accuracies = np.array(record.column("accuracy"))
    return float(np.max(np.maximum.accumulate(accuracies) - accuracies))


def worst_client(record: Record) -> float:
    """The worst client's accuracy, mean of the last ten rounds."""
    return float(np.mean(record.column("worst_client")[-10:]))


def client_spread(record: Record) -> float:
    """Deviation of the clients' accuracies, mean of the last ten rounds."""
    return float(np.mean(record.column("spread")[-10:]))
