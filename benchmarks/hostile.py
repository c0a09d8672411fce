"""One run with hostile clients: who they are, what they send, and what is kept of it. See robustness.py."""

import gc
import logging
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, MultiKrum
from numpy.typing import NDArray

from fedcome_flwr import UniformSelection, UpdateStrategy, fedavg, fedcome
from fedcome_flwr.client import client_app
from fedcome_flwr.core import RoundReport
from fedcome_flwr.core.round_report import HURT_BELOW
from fedcome_flwr.simulation import InlineGrid

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "quickstart"))
from quickstart import task
from quickstart.data import test_images, train_images
from quickstart.settings import DataSettings

ROUNDS = 20
LAST = 5  # rounds over which accuracies are averaged
IMAGES = 100  # a client
STUCK_BELOW = 0.05  # the model moves by less than this share of the honest clients' mean
LOCAL = {"learning_rate": 0.1, "batch_size": 50, "train_loss_after": False}
ON_CLIENT = ("sign flip", "x 100", "false loss", "false count")
ON_WAY = ("minus mean", "noise")
ATTACKS = ("clean", *ON_WAY, "sign flip", "x 100", "label flip", "false loss", "false count")
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One run: what is attacked, by how many of how many, and what defends."""

    clients: int
    attack: str
    hostile: int
    defence: str
    seed: int
    rounds: int = ROUNDS

    @cached_property
    def hostile_clients(self) -> frozenset[int]:
        order = np.random.default_rng((self.seed, self.clients)).permutation(self.clients)
        return frozenset(map(int, order[: self.hostile]))


OnRound = Callable[[RoundReport], bool | None]


def strategy_of(run: Run, on_round: OnRound) -> FedAvg:
    """The defence by name. Those that ask how many are hostile are told a fifth, whatever the truth."""
    assumed = run.clients // 5
    everybody: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    flowers: dict[str, Callable[[], FedAvg]] = {
        "FedMedian": lambda: FedMedian(**everybody),
        "FedTrimmedAvg": lambda: FedTrimmedAvg(beta=0.2, **everybody),
        "MultiKrum": lambda: MultiKrum(
            num_malicious_nodes=assumed, num_nodes_to_select=run.clients - assumed, **everybody
        ),
        # It refuses to work with fewer than 4 f + 3 clients.
        "Bulyan": lambda: Bulyan(num_malicious_nodes=min(assumed, (run.clients - 3) // 4), **everybody),
    }
    if run.defence in flowers:
        return flowers[run.defence]()
    ours = {
        "FedAvg": fedavg,
        "FedAvg, uniform": lambda: fedavg("uniform"),
        "FedCOME": fedcome,
        "FedCOME, uniform": lambda: fedcome("uniform"),
        "FedCOME, step 1": lambda: fedcome(server_step=1.0),
        "norm bound 2": lambda: fedcome(max_client_norm=2.0),
        "limit 0.1, norm bound 2": lambda: fedcome(influence_limit=0.1, max_client_norm=2.0),
        **{f"limit {c}": lambda c=c: fedcome(influence_limit=c) for c in (1.0, 0.3, 0.1, 0.03)},
    }
    return UpdateStrategy(
        method=ours[run.defence](), selector=UniformSelection(), seed=run.seed, on_round=on_round, **everybody
    )


def attacking(run: Run) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """A client mod that gives every client a seed of its own, and spoils what the hostile ones reply."""

    def attack(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        partition, config = int(context.node_config["partition-id"]), message.content["config"]
        # Flower's own strategies send none.
        config["client-seed"] = 1_000_003 * run.seed + 1_009 * int(config["server-round"]) + partition
        received = message.content["arrays"].copy()
        reply = call_next(message, context)
        if partition in run.hostile_clients and run.attack in ON_CLIENT and reply.has_content():
            if run.attack in ("sign flip", "false count"):
                reply.content["arrays"] = _stretched(received, reply.content["arrays"], -1.0)
            if run.attack == "x 100":
                reply.content["arrays"] = _stretched(received, reply.content["arrays"], 100.0)
            if run.attack == "false count":
                reply.content["metrics"]["num-examples"] = 10**18
            if run.attack == "false loss" and config["server-round"] > 1:
                reply.content["metrics"]["train-loss"] = float("inf")
        return reply

    return attack


def _stretched(received: ArrayRecord, trained: ArrayRecord, factor: float) -> ArrayRecord:
    return ArrayRecord(
        {
            name: Array(received[name].numpy() + np.float32(factor) * (trained[name].numpy() - received[name].numpy()))
            for name in received
        }
    )


class WatchedClients(InlineGrid):
    """Knows what the honest clients sent, and writes the replies of those attackers that know it too.

    Attributes
    ----------
    ratios, hurt
        By round: length of the server's step over that of the honest clients' mean, and the share of honest clients
        that the step hurts to first order.
    """

    def __init__(self, run: Run, app: Any) -> None:
        super().__init__(app, run.clients)
        self.ratios: list[float] = []
        self.hurt: list[float] = []
        self._watched = run
        self._partition = {context.node_id: int(context.node_config["partition-id"]) for context in self.contexts}
        self._received = np.zeros(0)
        self._honest = np.zeros((0, 0))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if not messages or messages[0].metadata.message_type != MessageType.TRAIN:
            return replies
        model = messages[0].content["arrays"]
        self._received = flat(model)
        replies.sort(key=lambda reply: self._partition[reply.metadata.src_node_id])
        sent = {self._partition[r.metadata.src_node_id]: r for r in replies if r.has_content()}
        hostile = self._watched.hostile_clients
        self._honest = np.array(
            [self._received - flat(r.content["arrays"]) for client, r in sent.items() if client not in hostile]
        )
        if self._watched.attack in ON_WAY:
            for client in hostile & sent.keys():
                target = self._received - self._forged(client, int(messages[0].content["config"]["server-round"]))
                sent[client].content["arrays"] = _shaped(target, model)
        return replies

    def _forged(self, client: int, server_round: int) -> Vector:
        """The pseudo-gradient of an attacker who has seen the honest ones."""
        if self._watched.attack == "minus mean":
            return -self._honest.mean(axis=0)
        noise = np.random.default_rng((self._watched.seed, server_round, client)).normal(size=self._received.size)
        return noise * np.median(np.linalg.norm(self._honest, axis=1)) / np.linalg.norm(noise)

    def moved_to(self, arrays: ArrayRecord) -> None:
        """Compare the server's step with the honest clients' pseudo-gradients."""
        step, lengths = self._received - flat(arrays), np.linalg.norm(self._honest, axis=1)
        with np.errstate(invalid="ignore", over="ignore"):
            self.ratios.append(float(np.linalg.norm(step) / np.linalg.norm(self._honest.mean(axis=0))))
            # Models travel in float32: products below this are not told from zero.
            products = self._honest @ step / (lengths * max(lengths.mean(), np.linalg.norm(step)))
            self.hurt.append(float(np.mean(~(products >= -1e-5))))


def flat(record: ArrayRecord) -> Vector:
    return np.concatenate([array.numpy().astype(np.float64).ravel() for array in record.values()])


def _shaped(vector: Vector, like: ArrayRecord) -> ArrayRecord:
    record, start = {}, 0
    for name, array in like.items():
        shape = array.numpy().shape
        size = int(np.prod(shape))
        record[name] = Array(vector[start : start + size].reshape(shape).astype(np.float32))
        start += size
    return ArrayRecord(record)


def execute(run: Run, dataset: str) -> dict[str, Any]:
    """Run it and return what is kept of it."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    random.seed(run.seed)  # Flower's own strategies draw the order of clients from here
    torch.set_num_threads(1)
    settings = DataSettings(
        dataset=dataset, class_assignment="first-deterministic", images_per_client=IMAGES, seed=run.seed
    )
    started = time.perf_counter()
    honest = [client for client in range(run.clients) if client not in run.hostile_clients]

    def data(context: Context) -> tuple[Any, Any]:
        client = int(context.node_config["partition-id"])
        images, labels = train_images(settings, run.clients, client)
        if run.attack == "label flip" and client in run.hostile_clients:
            labels = 9 - labels
        return (images, labels), test_images(settings, run.clients, client)

    model, clients_model = (task.initial_model("mlp", (1, 28, 28), 10, run.seed) for _ in range(2))
    # One model for all clients, which work one at a time; what they receive overwrites it.
    grid = WatchedClients(run, client_app(lambda: clients_model, data, mods=[attacking(run)], **LOCAL))
    accuracies: list[list[float]] = []
    reports: list[RoundReport] = []

    def look(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round > 0:
            grid.moved_to(arrays)
        if server_round > run.rounds - LAST:
            model.load_state_dict(arrays.to_torch_state_dict())
            accuracies.append([task.evaluate(model, *test_images(settings, run.clients, c))[1] for c in honest])
        return None

    # Some of Flower's strategies collect garbage once a reply: seconds a round with all of PyTorch to look through.
    gc.collect()
    gc.freeze()
    with grid:
        strategy_of(run, reports.append).start(
            grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=run.rounds, evaluate_fn=look
        )
    return asdict(run) | {
        "accuracy": _short(np.mean(accuracies)),
        "worst": _short(np.mean(accuracies, axis=0).min()),
        "ratio": _short(np.median(grid.ratios[-LAST:])),
        "stuck": bool(np.median(grid.ratios[-LAST:]) < STUCK_BELOW),
        "hurt": _short(np.mean(grid.hurt)),
        "seconds": round(time.perf_counter() - started, 1),
        **_of_reports(run, reports),
    }


def _of_reports(run: Run, reports: list[RoundReport]) -> dict[str, Any]:
    """What the server itself could see, for those strategies that report."""
    if not reports:
        return {}
    seen: dict[str, Any] = {
        "server_step": _short(reports[-1].server_step),
        "norm_ratio": _short(np.median([report.norm_ratio for report in reports[-LAST:]])),
        "hurt_by_direction": sum(report.hurt_by_direction for report in reports),
        "left_out": sum(len(report.left_out) for report in reports),
        "uncertified": sum(report.certified is False for report in reports),
    }
    vetoes = [(np.array(r.veto), r.clients) for r in reports if r.veto is not None and sum(r.veto) > -HURT_BELOW]
    if vetoes:
        shares = [float(veto.max() / veto.sum()) for veto, _ in vetoes]
        blamed = [int(clients[int(veto.argmax())]) in run.hostile_clients for veto, clients in vetoes]
        seen |= {
            "largest_veto_share": _short(np.mean(shares)),
            "largest_veto_share_ever": _short(max(shares)),
            "largest_veto_is_hostile": _short(np.mean(blamed)),
        }
    return seen


def _short(value: Any) -> float:
    return float(f"{float(value):.4g}")
