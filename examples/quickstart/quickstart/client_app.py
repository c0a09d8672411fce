"""What a client does: train, test, and say who it is."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedcome_flwr.client import train_locally
from quickstart import task
from quickstart.data import num_classes, test_images, train_images
from quickstart.settings import DataSettings

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = context.run_config
    images, labels = train_images(DataSettings.from_run_config(config), *_place(context))
    device = task.prepare_device(int(config["threads"]))
    model = _received_model(message, context, images)
    weight_decay = float(config["weight-decay"])
    # The paper's loss of a client (its figure 2) counts the weight decay.
    penalty = task.decay_penalty(model, weight_decay)

    server_round = int(message.content["config"]["server-round"])
    result = train_locally(
        model,
        (images, labels),
        learning_rate=float(config["learning-rate"]),
        learning_rate_decay=float(config["learning-rate-decay"]),
        server_round=server_round,
        weight_decay=weight_decay,
        momentum=float(config["momentum"]),
        batch_size=int(config["batch-size"]),
        local_epochs=int(config["local-epochs"]),
        seed=_batch_seed(message, context, server_round),
        device=device,
    )
    arrays = ArrayRecord({name: Array(array) for name, array in result.arrays.items()})
    metrics = MetricRecord({**result.metrics, "objective": result.metrics["train-loss"] + penalty})
    content = RecordDict({"arrays": arrays, "metrics": metrics, "client": _identity(context)})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    images, labels = test_images(DataSettings.from_run_config(context.run_config), *_place(context))
    device = task.prepare_device(int(context.run_config["threads"]))
    model = _received_model(message, context, images).to(device)
    loss, accuracy = task.evaluate(model, images.to(device), labels.to(device))
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss, "accuracy": accuracy})
    return Message(content=RecordDict({"metrics": metrics, "client": _identity(context)}), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    return Message(content=RecordDict({"client": _identity(context)}), reply_to=message)


def _place(context: Context) -> tuple[int, int]:
    return int(context.node_config["num-partitions"]), int(context.node_config["partition-id"])


def _identity(context: Context) -> ConfigRecord:
    # Node ids are drawn anew in every run; the partition is what stays the same client.
    return ConfigRecord({"client-id": str(context.node_config["partition-id"])})


def _received_model(message: Message, context: Context, images: Tensor) -> nn.Module:
    settings = DataSettings.from_run_config(context.run_config)
    # Every weight is overwritten, so none is drawn: `meta` builds the layers without memory.
    with torch.device("meta"):
        model = task.build_model(str(context.run_config["model"]), tuple(images.shape[1:]), num_classes(settings))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), assign=True)
    return model


def _batch_seed(message: Message, context: Context, server_round: int) -> int:
    config = message.content["config"]
    if "client-seed" in config:
        return int(config["client-seed"])
    # Strategies that send no seed, as Flower's own: still another order for every client and round.
    parts = (int(context.run_config["seed"]), server_round, int(context.node_config["partition-id"]))
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
