"""What the claims are judged by: the kept cells of a scale, and the words for an outcome."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.paper.protocol import DATASETS, METHODS, Scale
from examples.paper.reporting.groups import Group, grouped
from examples.paper.runs import Choice, runs_of
from examples.paper.store import Record

HOLDS, FAILS, MIXED, OPEN = "holds", "does not hold", "mixed", "open"
EQUAL = 0.005  # accuracies this close count as equal: about two deviations of a MNIST run over its seeds


@dataclass(frozen=True)
class Verdict:
    """One claim's measurement."""

    number: str
    verdict: str


NOTHING = Verdict("no complete runs", OPEN)


class Kept:
    """The kept cells of a scale."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale

    def groups(self, target: str, **wanted: Any) -> list[Group]:
        """Cells of a target that have a run and these values in their :class:`Run`."""
        found = [group for group in grouped(runs_of(target, self.scale, Choice())) if group.records]
        return [g for g in found if all(getattr(g.first, name) == value for name, value in wanted.items())]

    def by_arm(self, target: str, **wanted: Any) -> dict[str, Group]:
        """The same by method, where the cells differ in nothing else."""
        return {group.first.arm: group for group in self.groups(target, **wanted)}

    def complete(self, target: str, **wanted: Any) -> dict[str, dict[str, Group]]:
        """By data set, the methods' cells, for data sets on which all seven have a run."""
        tables = {name: self.by_arm(target, dataset=name, **wanted) for name in DATASETS}
        return {name: arms for name, arms in tables.items() if set(METHODS) <= arms.keys()}


def verdict(outcomes: Iterable[bool]) -> str:
    """Whether a claim held in all, some or none of the cells that it speaks of; open without any."""
    outcomes = list(outcomes)
    if not outcomes:
        return OPEN
    return HOLDS if all(outcomes) else MIXED if any(outcomes) else FAILS


def with_open(parts: Sequence[str], done: Collection[str], planned: Iterable[str]) -> str:
    """The measurements, and the names of the data sets that are still open."""
    left = [DATASETS[name].title for name in planned if name not in done]
    return "; ".join([*parts, f"open: {', '.join(left)}"] if left else parts)


def mean_of(group: Group, measure: Callable[[Record], float | None]) -> float:
    """Mean of a number over a cell's seeds."""
    values = group.values(measure)
    return float(np.mean(values)) if values else float("nan")


def accuracy_of(group: Group) -> float:
    """Mean over its seeds of the mean of the last ten rounds."""
    return mean_of(group, lambda record: record.final_accuracy)


def total(group: Group, key: str) -> int:
    """Sum of a count over rounds and seeds."""
    return sum(sum(record.column(key)) for record in group.records.values())


def title_of(group: Group) -> str:
    """The data set's name."""
    return DATASETS[group.first.dataset].title
