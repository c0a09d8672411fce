"""What a client does with a message, whatever Flower's form of it: the part that both kinds of client share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.arrays import Arrays
from ..core.checks import check_choice
from .arrays import load_arrays, pseudo_gradient
from .data import Data, check_data, evaluation_batches
from .device import borrowed, choose_device
from .evaluation import LossFn, MetricsFn, accuracy, evaluate_batches
from .settings import Config, check_defaults, read_settings
from .training import LocalResult, train_locally

Reply = Literal["model", "pseudo-gradient"]
_REPLIES = ("model", "pseudo-gradient")


@dataclass(frozen=True)
class LocalWork:
    """A client's training and evaluation, with settings that each message may change.

    Attributes
    ----------
    loss_fn
        ``(outputs, targets)`` to the mean loss of a batch.
    metrics_fn
        ``(outputs, targets)`` to means over a batch, for evaluations.
    defaults
        Settings that no configuration gives, by Python name.
    """

    loss_fn: LossFn = cross_entropy
    metrics_fn: MetricsFn = accuracy
    defaults: Config = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_defaults(self.defaults)
        check_choice("reply", self.defaults.get("reply", "model"), _REPLIES)

    def train(
        self, model: nn.Module, data: Data, received: Arrays, configs: Sequence[Config], client_id: str | None
    ) -> tuple[Reply, LocalResult]:
        """Train the received model; the result's arrays are what the reply's kind says, under the received names."""
        settings = read_settings(configs, self.defaults)
        reply = settings.pop("reply", "model")
        check_choice("reply", reply, _REPLIES)
        seed = settings.pop("client_seed", None)
        if seed is None:
            # Strategies that send no seed, as Flower's own: still another order for every client and round.
            parts = (settings.get("server_round", 0), *(client_id or "").encode())
            seed = int(np.random.SeedSequence(parts).generate_state(1)[0])
        load_arrays(model, received)
        result = train_locally(model, data, loss_fn=self.loss_fn, names=received, seed=seed, **settings)
        if reply == "pseudo-gradient":
            result = LocalResult(pseudo_gradient(received, result.arrays), result.metrics)
        return cast(Reply, reply), result

    def evaluate(
        self, model: nn.Module, data: Data, received: Arrays, configs: Sequence[Config]
    ) -> dict[str, int | float]:
        """``num-examples``, ``loss`` and metrics of the received model."""
        device = choose_device(read_settings(configs, self.defaults).get("device"))
        check_data(data)
        load_arrays(model, received)
        with borrowed(model, device):
            return evaluate_batches(
                model, evaluation_batches(data), device, loss_fn=self.loss_fn, metrics_fn=self.metrics_fn
            )
