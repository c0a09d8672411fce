"""Round reports as TensorBoard events."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.round_report import RoundReport

_OF_THE_ROUND = (
    "conflicting_pairs",
    "hurt_by_mean",
    "hurt_by_direction",
    "smallest_product",
    "norm_ratio",
    "update_norm",
    "server_step",
    "smoothness_limit",
    "remaining_conflicts",
)


class TensorBoard:
    """Write each round's numbers where ``tensorboard --logdir`` finds them; pass it to a strategy as ``on_round``.

    Under ``fedcome/`` what the round did to the clients; under ``clients/`` the mean of what they found when they
    tested the model, by examples, and the worst and best of them; under ``train/`` the mean of what they reported from
    training; under ``server/`` what ``evaluate_fn`` returned. Numbers that are not finite are left out.

    Parameters
    ----------
    folder
        Of this run; TensorBoard compares the folders below its ``--logdir``. A resumed run goes on in it.

    Raises
    ------
    ImportError
        TensorBoard is missing: ``pip install "fedcome-flwr[tensorboard]"``.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise ImportError('TensorBoard events need TensorBoard: pip install "fedcome-flwr[tensorboard]"') from error
        self.folder = Path(folder)
        self._writer = Writer(str(folder))

    def __call__(self, report: RoundReport) -> None:
        """Write one round's numbers."""
        values: dict[str, Any] = {f"fedcome/{name}": getattr(report, name) for name in _OF_THE_ROUND}
        values |= {"fedcome/clients": len(report.clients), "fedcome/left_out": len(report.left_out)}
        values["fedcome/missing"] = len(report.missing)
        for name, (mean, worst, best) in _over_clients(report.evaluations).items():
            values |= {f"clients/{name}": mean, f"clients/{name}-lowest": worst, f"clients/{name}-highest": best}
        values |= {f"train/{name}": mean for name, (mean, _, _) in _over_clients(report.client_metrics).items()}
        values |= {f"server/{name}": value for name, value in report.server_metrics.items()}
        for tag, value in values.items():
            if value is not None and np.isfinite(value):
                self._writer.add_scalar(tag, value, report.round)
        self._writer.flush()


def _over_clients(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, float, float]]:
    """Mean by examples, smallest and largest value of every metric, over the clients that have it."""
    names = dict.fromkeys(name for client in metrics.values() for name in client if name != "num-examples")
    found = {}
    for name in names:
        pairs = [(client[name], client.get("num-examples", 1)) for client in metrics.values() if name in client]
        values, weights = np.array(pairs, dtype=np.float64).T
        if weights.sum() > 0:
            found[name] = float(np.average(values, weights=weights)), float(values.min()), float(values.max())
    return found
