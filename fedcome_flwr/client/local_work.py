"""What a client does with a message, whatever Flower's form of it: the part that both kinds of client share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.arrays import Arrays, is_parameter
from ..core.checks import check_choice
from ..core.local_rule import STEP_SIZE_SUM, ClientMemory, LocalRule, correction, moved
from .arrays import load_arrays, pseudo_gradient
from .data import Data, check_data, evaluation_batches
from .device import borrowed, choose_device
from .evaluation import LossFn, MetricsFn, accuracy, evaluate_batches
from .memory import MemoryStore, StoredMemory
from .settings import Config, check_defaults, read_rule, read_settings
from .training import train_locally

Reply = Literal["model", "pseudo-gradient"]
_REPLIES = ("model", "pseudo-gradient")


@dataclass(frozen=True, eq=False)
class TrainReply:
    """What a client sends back: its arrays, of what kind they are, its numbers, and which memory it trained with."""

    kind: Reply
    arrays: Arrays
    metrics: Mapping[str, int | float]
    memory_round: int | None = None


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
        self,
        model: nn.Module,
        data: Data,
        received: Arrays,
        configs: Sequence[Config],
        client_id: str | None,
        *,
        control: Arrays | None = None,
        store: MemoryStore | None = None,
    ) -> TrainReply:
        """Train the received model by the local rule that the server asks for.

        The reply's arrays have the received names. A client that does not have the memory that the server counts on
        does not train: it sends back what it received, and the round of the memory that it has.

        Parameters
        ----------
        configs
            The server's configuration first, then others.
        control
            The server's control variate, if one came.
        store
            Where the client's memory is kept.
        """
        settings = read_settings(configs, self.defaults)
        kind = settings.pop("reply", "model")
        check_choice("reply", kind, _REPLIES)
        rule, epoch, accepted_round = read_rule(configs[0])
        memory = StoredMemory()
        if rule.has_memory:
            stored = _store_of(store).load()
            confirmed = stored.confirmed(epoch, accepted_round)
            if confirmed is None:
                return TrainReply("model", received, {"num-examples": 0}, stored.round_in(epoch))
            memory = confirmed
        if rule.control and control is None:
            raise ValueError(
                "the server's control variate did not come with the message: a ClientApp around a NumPyClient needs "
                "mods=[fedcome_flwr.client.memory_mod]"
            )
        seed = settings.pop("client_seed", None)
        if seed is None:
            # Strategies that send no seed, as Flower's own: still another order for every client and round.
            parts = (settings.get("server_round", 0), *(client_id or "").encode())
            seed = int(np.random.SeedSequence(parts).generate_state(1)[0])
        load_arrays(model, received)
        result = train_locally(
            model,
            data,
            loss_fn=self.loss_fn,
            names=received,
            seed=seed,
            correction=correction(rule, memory.accepted, control or {}) if rule != LocalRule() else None,
            **settings,
        )
        arrays = pseudo_gradient(received, result.arrays) if kind == "pseudo-gradient" else result.arrays
        reply = TrainReply(cast(Reply, kind), arrays, result.metrics)
        if not rule.has_memory:
            return reply
        after = _moved(rule, memory.accepted, received, reply, control or {})
        _store_of(store).save(replace(memory, pending_round=settings.get("server_round", 0), pending=after))
        return replace(reply, memory_round=memory.accepted_round)

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


def _store_of(store: MemoryStore | None) -> MemoryStore:
    if store is None:
        raise ValueError(
            "this method keeps a memory on clients, and the client has no place for it: expected "
            "FedCOMEClient(..., context=context), found no context"
        )
    return store


def _moved(rule: LocalRule, memory: ClientMemory, received: Arrays, reply: TrainReply, control: Arrays) -> ClientMemory:
    """The memory after training, from the very numbers that are sent."""
    steps = reply.metrics[STEP_SIZE_SUM]
    if rule.control and not steps:  # AMP skipped every step: there is no gradient, and the server refuses the reply
        return memory
    names = control if rule.control else [name for name, array in received.items() if is_parameter(name, array)]
    gradients = {
        name: np.subtract(received[name], reply.arrays[name], dtype=np.float64)
        if reply.kind == "model"
        else reply.arrays[name].astype(np.float64)
        for name in names
    }
    after = moved(rule, memory, gradients, control, steps)
    return ClientMemory(_as(received, after.drift), _as(received, after.control))


def _as(received: Arrays, values: Arrays) -> Arrays:
    """The values in the model's types, which is how much of them is kept."""
    return {name: array.astype(received[name].dtype) for name, array in values.items()}
