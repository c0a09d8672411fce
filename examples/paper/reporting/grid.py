"""The search for hyperparameters: which point won, for `table5` and for all later runs."""

import json
from typing import Any

from examples.paper import store
from examples.paper.protocol import ARMS, CHOICES, GRID_DATASETS, SEARCH, Scale
from examples.paper.runs import Choice, grid_runs

Points = list[tuple[dict[str, Any], float | None]]


def points(scale: Scale, dataset: str, arm: str) -> Points:
    """Every point of an arm's search space with its accuracy on the held-out images, ``None`` where it is open."""
    found: Points = []
    for run in grid_runs(scale, Choice(datasets=[dataset], arms=[arm])):
        record = store.load(run.name)
        values = {name: run.config[name] for name in SEARCH[arm]}
        found.append((values, record and record.final_accuracy))
    return found


def record_choice(scale: Scale) -> dict[str, dict[str, Any]]:
    """Write down the best point of every search that is complete; ties go to the published value, as
    FedFV's τ does, which means nothing while nobody is absent."""
    kept = json.loads(CHOICES.read_text()) if CHOICES.exists() else {}
    for dataset in GRID_DATASETS:
        for arm in SEARCH:
            tried = [(values, accuracy) for values, accuracy in points(scale, dataset, arm) if accuracy is not None]
            if len(tried) == len(points(scale, dataset, arm)):
                published = ARMS[arm].published.items()
                best, _ = max(tried, key=lambda point: (point[1], len(point[0].items() & published)))
                kept.setdefault(dataset, {})[arm] = best
    CHOICES.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    return dict(kept)
