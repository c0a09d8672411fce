"""The results on disk: one file a run, a line of JSON for the run, for each round, and for its end."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from examples.paper.protocol import RESULTS

RUNS = RESULTS / "runs"


@dataclass(frozen=True)
class Record:
    """A finished run as it was kept: its header (see :meth:`Run.header`), its rounds, and its last line."""

    name: str
    header: dict[str, Any]
    rounds: list[dict[str, Any]]
    end: dict[str, Any]

    def column(self, key: str) -> list[Any]:
        """One number of every round, ``None`` in rounds that do not have it."""
        return [line.get(key) for line in self.rounds]

    @cached_property
    def final_accuracy(self) -> float:
        """Mean of the last ten rounds: single rounds of a federation of disagreeing clients jump."""
        last = [line["accuracy"] for line in self.rounds[-10:]]
        return float(sum(last) / len(last))


def path_of(name: str) -> Path:
    """The file of a run."""
    return RUNS / f"{name}.jsonl"


def is_done(name: str) -> bool:
    """Whether a run is kept; files appear whole or not at all."""
    return path_of(name).exists()


def write(name: str, lines: list[dict[str, Any]]) -> None:
    """Keep a run, whole or not at all."""
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(name: str) -> Record | None:
    """A kept run, or ``None`` where it is open."""
    path = path_of(name)
    if not path.exists():
        return None
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if len(lines) < 3 or lines[0].get("kind") != "run" or lines[-1].get("kind") != "end":
        raise ValueError(f"{path}: expected a run, its rounds and its end, a line each; remove it to run it again")
    return Record(name, lines[0], lines[1:-1], lines[-1])
