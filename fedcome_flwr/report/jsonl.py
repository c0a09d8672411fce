"""Round reports as JSON lines: one object a round, readable by people, pandas and the plots."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.round_report import RoundReport


class JsonLines:
    """Append each round's report to a file; pass it to a strategy as ``on_round``.

    The report of round 1 begins the file anew; later rounds are appended, so a resumed run goes on in the same file.
    Each line is on disk before the next round begins. NaN and infinities, which JSON does not know, become ``null``.

    Parameters
    ----------
    path
        The file; its folder is made if it is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __call__(self, report: RoundReport) -> None:
        """Write one line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
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
