"""The paper's tables: rows of text, as Markdown, as CSV and on the screen."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as RichTable

from examples.paper.protocol import ARMS, DATASETS, SEARCH, Scale
from examples.paper.reporting import grid
from examples.paper.reporting.groups import (
    Group,
    by_dataset,
    client_spread,
    deepest_fall,
    diverged,
    paired_difference,
    reached,
    spread,
    total_rises,
    worst_client,
)
from examples.paper.runs import Choice, runs_of


@dataclass(frozen=True)
class Table:
    """A titled grid of text."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    prose: bool = False  # cells are text, not numbers

    def pretty(self) -> RichTable:
        """For the screen."""
        table = RichTable(title=self.title, caption=self.note or None)
        for number, heading in enumerate(self.columns):
            table.add_column(heading, justify="left" if number == 0 or self.prose else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def write(self, folder: Path) -> list[Path]:
        """As Markdown and CSV."""
        folder.mkdir(parents=True, exist_ok=True)
        markdown, comma = folder / f"{self.name}.md", folder / f"{self.name}.csv"
        lines = [self.columns, ["---"] + ["---" if self.prose else "---:"] * (len(self.columns) - 1), *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        markdown.write_text(f"**{self.title}**\n\n{body}\n" + (f"\n{self.note}\n" if self.note else ""))
        with comma.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([self.columns, *self.rows])
        return [markdown, comma]


ACCURACY = "Accuracy: mean over clients by their test images, mean of the last ten rounds; ± deviation over seeds."
REACHED = "98 % of FedAvg's accuracy"


def build(target: str, scale: Scale, choice: Choice) -> list[Table]:
    """The tables of a target at a scale, one for each data set that was asked for and has a kept run."""
    tables = []
    for dataset, mine in by_dataset(runs_of(target, scale, choice)).items():
        if not any(group.records for group in mine):
            continue
        name = f"{target}-{dataset}-{scale.name}"
        match target:
            case "table2":
                tables.append(_by_classes(name, dataset, mine))
            case "table3":
                tables.append(_by_participation(name, dataset, mine))
            case "table4":
                tables.append(_by_selection(name, dataset, scale, mine))
            case "steps":
                tables.append(_by_step(name, dataset, mine))
            case "table5":
                tables.append(_search(scale, dataset))
            case _:
                tables.append(_compared(name, dataset, mine))
    return tables


def _compared(name: str, dataset: str, groups: Sequence[Group]) -> Table:
    fedavg = next((group for group in groups if group.first.arm == "fedavg"), None)
    columns = (
        "",
        "seeds",
        "accuracy",
        "minus FedAvg [95 %]",
        "all test images",
        "worst client",
        "spread of clients",
        "own loss rose, %",
        f"rounds to {REACHED}",
        "MB until then",
    )
    rows = []
    for group in groups:
        to_target = reached(group, fedavg) if fedavg and group.records else ("open", "open")
        rows.append(
            (
                ARMS[group.first.arm].title + (", diverged" if any(map(diverged, group.records.values())) else ""),
                group.seeds,
                spread(group.values(lambda record: record.final_accuracy)),
                paired_difference(group, fedavg) if fedavg else "open",
                spread(group.values(lambda record: record.rounds[-1].get("global_accuracy"))),
                spread(group.values(worst_client)),
                spread(group.values(client_spread)),
                spread(group.values(total_rises), "{:.1f}"),
                *to_target,
            )
        )
    run = groups[0].first
    title = f"Table 1: {DATASETS[dataset].title}, all {run.clients} clients in every one of {run.rounds} rounds"
    return Table(name, title, columns, rows, ACCURACY)


def _by_classes(name: str, dataset: str, groups: Sequence[Group]) -> Table:
    cells = {(group.first.arm, group.first.classes): group for group in groups}
    arms = list(dict.fromkeys(group.first.arm for group in groups))
    rows = [
        (ARMS[arm].title, *(spread(cells[arm, classes].values(lambda r: r.final_accuracy)) for classes in (2, 3, 4)))
        for arm in arms
    ]
    title = f"Table 2: {DATASETS[dataset].title}, C classes a client"
    return Table(name, title, ("", "C = 2", "C = 3", "C = 4"), rows, ACCURACY)


def _by_participation(name: str, dataset: str, groups: Sequence[Group]) -> Table:
    cells = {(group.first.arm, group.first.participation, group.first.selection): group for group in groups}
    shares = sorted({group.first.participation for group in groups})
    arms = list(dict.fromkeys(group.first.arm for group in groups))
    columns = [""]
    for share in shares:
        columns += [f"{share:.0%}, uniform", f"{share:.0%}, consensus", f"{share:.0%}, gain [95 %]"]
    rows = []
    for arm in arms:
        row = [ARMS[arm].title]
        for share in shares:
            uniform, consensus = cells[arm, share, "uniform"], cells[arm, share, "consensus"]
            row += [spread(group.values(lambda r: r.final_accuracy)) for group in (uniform, consensus)]
            row.append(paired_difference(consensus, uniform))
        rows.append(row)
    title = f"Table 3: {DATASETS[dataset].title}, partial participation with either selection"
    return Table(name, title, columns, rows, ACCURACY)


def _by_selection(name: str, dataset: str, scale: Scale, groups: Sequence[Group]) -> Table:
    cells = {(g.first.config["selection-alpha"], g.first.config["selection-mu"]): g for g in groups}
    rows = [
        (f"α = {alpha}", *(spread(cells[alpha, mu].values(lambda r: r.final_accuracy)) for mu in scale.grid4))
        for alpha in scale.grid4
    ]
    title = f"Table 4: {DATASETS[dataset].title}, FedCOME at 20 %, consensus selection"
    return Table(name, title, ("", *(f"µ = {mu}" for mu in scale.grid4)), rows, ACCURACY)


def _by_step(name: str, dataset: str, groups: Sequence[Group]) -> Table:
    columns = ("", "participation", "seeds", "accuracy", "deepest fall", "own loss rose, %", "step", "update's norm")
    rows = []
    for group in groups:
        steps, norms = (
            [value for record in group.records.values() for value in record.column(key)]
            for key in ("server_step", "update_norm")
        )
        rows.append(
            (
                ARMS[group.first.arm].title,
                f"{group.first.participation:.0%}",
                group.seeds,
                spread(group.values(lambda record: record.final_accuracy)),
                spread(group.values(deepest_fall)),
                spread(group.values(total_rises), "{:.1f}"),
                f"{min(steps):.2f} to {max(steps):.2f}" if steps else "open",
                f"{min(norms):.2f} to {max(norms):.2f}" if norms else "open",
            )
        )
    title = f"{DATASETS[dataset].title}: FedCOME's step, {groups[0].first.rounds} rounds, uniform selection"
    note = f"{ACCURACY} Deepest fall: of the accuracy below one that it had before. Norm: before coordinates are cut."
    return Table(name, title, columns, rows, note)


def _search(scale: Scale, dataset: str) -> Table:
    rows = []
    kept = grid.record_choice(scale)
    for arm in SEARCH:
        for values, accuracy in grid.points(scale, dataset, arm):
            text = ", ".join(f"{name.split('-')[1]} = {value:g}" for name, value in values.items())
            mark = "chosen" if kept.get(dataset, {}).get(arm) == values else ""
            rows.append((ARMS[arm].title, text, "open" if accuracy is None else f"{accuracy:.4f}", mark))
    title = f"Table 5: {DATASETS[dataset].title}, search for hyperparameters on a held-out fifth of the training images"
    return Table(
        f"table5-{dataset}-{scale.name}", title, ("", "values", "accuracy", ""), rows, "Ties: published value."
    )
