"""The bound in the code that FedCOME's authors published, for comparison with the methods' own."""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedcome_flwr import Method, UpdateStrategy
from fedcome_flwr.core import Selector, is_parameter


class ClampedStrategy(UpdateStrategy):
    """No coordinate of the model moves by more than `bound` in a round.

    Cutting coordinates turns the update, so that the consensus direction may hurt clients again; `max_update_norm`
    shortens it instead. Without checkpoints: they would hold the model before it is cut.
    """

    def __init__(self, *, bound: float, method: Method, selector: Selector, seed: int, **options: float) -> None:
        super().__init__(method=method, selector=selector, seed=seed, **options)
        self.bound = bound
        self._before = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._before = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        after, metrics = super().aggregate_train(server_round, replies)
        if after is not None:
            after = ArrayRecord({name: Array(self._cut(name, array.numpy())) for name, array in after.items()})
        return after, metrics

    def _cut(self, name: str, after: np.ndarray) -> np.ndarray:
        before = self._before[name].numpy()
        if not is_parameter(name, before):
            return after
        return (before + np.clip(after.astype(np.float64) - before, -self.bound, self.bound)).astype(after.dtype)
