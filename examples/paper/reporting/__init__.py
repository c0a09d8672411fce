"""From kept runs to tables, figures and verdicts on the paper's claims. Nothing here trains."""

import itertools
import os

from rich.console import Console

from examples.paper.protocol import DATASETS, RESULTS, Scale
from examples.paper.reporting import claims, figures, grid, groups, tables
from examples.paper.runs import TARGETS, Choice, runs_of


def report(target: str, scale: Scale, choice: Choice) -> None:
    """Write what the kept runs give: a table, a figure or the claims, each with its open cells shown as open."""
    console = Console(width=160)
    # Tables and figures are always whole: those methods and seeds that were run before stay in them.
    extra = tuple(sorted({*choice.seeds, *itertools.chain.from_iterable(scale.seeds.values())}))
    known = {seed for seeds in scale.seeds.values() for seed in seeds}
    choice = Choice(choice.datasets, (), extra if set(choice.seeds) - known else ())
    for name in TARGETS if target == "all" else (target,):
        if name == "grid":
            grid.record_choice(scale)
            name = "table5"
        if name.startswith("table"):
            for table in tables.build(name, scale, choice):
                console.print(table.pretty())
                _say(console, table.write(RESULTS / "tables"))
        elif name.startswith("figure"):
            _say(console, figures.draw(name, scale, choice, RESULTS / "figures"))
        if name != "claims" and (bare := _without_runs(name, scale, choice)):
            console.print(f"{name}: open on {', '.join(bare)}, of which no run is kept")
    if target in ("claims", "all"):
        table = claims.judge(scale)
        console.print(table.pretty())
        _say(console, table.write(RESULTS / "tables"))


def _without_runs(target: str, scale: Scale, choice: Choice) -> list[str]:
    cells = groups.by_dataset(runs_of(target, scale, choice))
    return [DATASETS[name].title for name, found in cells.items() if not any(group.records for group in found)]


def _say(console: Console, paths: list[os.PathLike[str]]) -> None:
    for path in paths:
        console.print(f"written: {os.path.relpath(path)}", highlight=False)
