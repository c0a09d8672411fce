"""A run's rounds as the numbers that plots are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class RunData:
    """The rounds of one run, as :func:`~fedcome_flwr.report.read_rounds` gives them.

    Attributes
    ----------
    name
        How the plots call it.
    rounds
        One report a round, in order.
    """

    name: str
    rounds: Sequence[Mapping[str, Any]]

    @property
    def numbers(self) -> Numbers:
        """The round numbers, shape ``[r]``."""
        return self.column("round")

    def column(self, name: str) -> Numbers:
        """One number of every round, shape ``[r]``; NaN where a round has none."""
        return _numbers([report.get(name) for report in self.rounds])

    def evaluated(self, metric: str) -> Numbers:
        """What the clients found when they tested the model, shape ``[r, 3]``: the mean by examples, and the values
        between which four of five clients lie. NaN where nobody has the metric."""
        return np.array([_spread(report["evaluations"].values(), metric) for report in self.rounds]).reshape(-1, 3)

    def reported(self, metric: str) -> Numbers:
        """The server's own test of the model, shape ``[r]``."""
        return _numbers([report["server_metrics"].get(metric) for report in self.rounds])

    def losses(self) -> tuple[list[str], Numbers]:
        """Each client's loss of the models that it received, shape ``[r, clients]``; NaN where it was away."""
        keys = sorted({key for report in self.rounds for key in report["clients"]})
        found = np.full((len(self.rounds), len(keys)), np.nan)
        places = {key: place for place, key in enumerate(keys)}
        for row, report in enumerate(self.rounds):
            for key, loss in zip(report["clients"], report["train_losses"], strict=False):
                found[row, places[key]] = np.nan if loss is None else loss
        return keys, found

    def chosen(self) -> tuple[list[str], Numbers]:
        """How often each client was asked to train, and how often of these as one of the least similar, shape
        ``[2, clients]``; the former in all of the run, the latter in the rounds at hand."""
        times = self.rounds[-1]["times_chosen"] if self.rounds else {}
        keys = sorted(times, key=lambda key: (-times[key], key))
        annealed = [sum(key in report["annealed"] for report in self.rounds) for key in keys]
        return keys, np.array([[times[key] for key in keys], annealed], dtype=np.float64)


def rises(losses: Numbers) -> NDArray[np.bool_]:
    """Where a client's loss stands above the last one that it reported, shape ``[r, clients]``."""
    last = np.full(losses.shape[1], np.nan)
    found = np.zeros(losses.shape, dtype=np.bool_)
    for row, now in enumerate(losses):
        with np.errstate(invalid="ignore"):
            found[row] = now > last
        last = np.where(np.isnan(now), last, now)
    return found


def _numbers(values: Sequence[Any]) -> Numbers:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _spread(clients: Any, metric: str) -> tuple[float, float, float]:
    found = [(client[metric], client.get("num-examples", 1)) for client in clients if client.get(metric) is not None]
    if not found:
        return (np.nan,) * 3
    values, weights = np.array(found, dtype=np.float64).T
    low, high = np.quantile(values, (0.1, 0.9))
    return float(np.average(values, weights=weights)), float(low), float(high)
