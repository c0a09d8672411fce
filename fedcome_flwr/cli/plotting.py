"""What `fedcome plot` reads and prints."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..core.similarity import SimilarityTable
from ..report import RunData, draw_plots, read_rounds


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """The runs in these files, called after them.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        A file holds no rounds, or something else; the text says which file.
    """
    same = Counter(path.stem for path in paths)
    runs = []
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; on_round=JsonLines(PATH) writes one")
        try:
            rounds = read_rounds(path)
            missing = [not {"round", "clients", "evaluations"} <= report.keys() for report in rounds]
        except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
            raise ValueError(f"{path}: expected a line of JSON a round, as JsonLines writes them: {error}") from error
        if not rounds or any(missing):
            raise ValueError(
                f"{path}: expected round reports, as JsonLines writes them, found {len(rounds)} other lines"
            )
        runs.append(RunData(path.stem if same[path.stem] == 1 else str(path.with_suffix("")), rounds))
    return runs


def shown_plots(runs: Sequence[RunData], folder: Path, *, kind: str, metric: str, table: SimilarityTable | None) -> int:
    """Draw them, print each file and each reason why there is none, and return how many were drawn."""
    try:
        paths, missing = draw_plots(runs, folder, kind=kind, metric=metric, table=table)
    except ModuleNotFoundError as error:
        raise ImportError(f'plots need {error.name}: pip install "fedcome-flwr[plot]"') from error
    for path in paths:
        print(path)
    for reason in missing:
        print(f"not drawn: {reason}")
    return len(paths)
