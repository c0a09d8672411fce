"""A small federation on NumPy: every client pulls the model towards a target of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

SIZE = 6
Change = Callable[[RecordDict, int, int], RecordDict | None]


def initial() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(SIZE, dtype="float32")), "seen": Array(np.array(0))})


def target(partition: int) -> np.ndarray:
    return np.random.default_rng(partition).normal(size=SIZE).astype("float32")


def federation(change: Change | None = None, *, label: Callable[[int], str] = str, query: bool = True) -> ClientApp:
    """Clients that answer as the message contract says; ``change(content, partition, round)`` spoils a reply."""
    app = ClientApp()

    def answer(message: Message, content: RecordDict, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        content["client"] = ConfigRecord({"client-id": label(partition)})
        if change is not None:
            server_round = int(message.content["config"]["server-round"]) if "config" in message.content else 0
            content = change(content, partition, server_round) or content
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        seed = message.content["config"].get("client-seed")
        noise = 0.0 if seed is None else 0.1 * np.random.default_rng(seed).normal(size=SIZE)
        loss = 0.5 * float(np.sum((arrays["w"] - target(partition)) ** 2))
        w = arrays["w"] - 0.1 * (arrays["w"] - target(partition) + noise)
        new = ArrayRecord({"w": Array(w.astype("float32")), "seen": Array(np.asarray(arrays["seen"] + 1))})
        metrics = MetricRecord({"num-examples": 10 + partition, "train-loss": loss})
        return answer(message, RecordDict({"arrays": new, "metrics": metrics}), context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        w = message.content["arrays"]["w"].numpy()
        metrics = MetricRecord({"num-examples": 5, "loss": float(np.sum((w - target(partition)) ** 2))})
        return answer(message, RecordDict({"metrics": metrics}), context)

    if query:

        @app.query()
        def tell(message: Message, context: Context) -> Message:
            return answer(message, RecordDict(), context)

    return app


def bytes_of(record: ArrayRecord) -> dict[str, Any]:
    return {name: array.numpy().tobytes() for name, array in record.items()}
