"""Round reports as JSON lines: one object a round, readable by people, pandas and the plots."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.round_report import RoundReport


class JsonLines:
    """Append each round's report to a file; pass it to a strategy as ``on_round``.

    The report of round 1 begins the file anew; later rounds are appended. A resumed run goes on in the same file, and
    the first report that it writes takes the place of what the file has of this round and later ones. Each line is on
    disk before the next round begins. NaN and infinities, which JSON does not know, become ``null``.

    Parameters
    ----------
    path
        The file; its folder is made if it is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._begun = False

    def __call__(self, report: RoundReport) -> None:
        """Write one line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._begun and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["round"] < report.round]
            if kept != lines:  # a round that is played again, or a line that a crash cut off
                part = self.path.with_name(f".{self.path.name}.part")
                part.write_text("".join(kept), encoding="utf-8")
                part.replace(self.path)
        self._begun = True
        with self.path.open("w" if report.round == 1 else "a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(asdict(report)), allow_nan=False) + "\n")


def read_rounds(path: str | Path) -> list[dict[str, Any]]:
    """The rounds of a file written by :class:`JsonLines`, in order."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
