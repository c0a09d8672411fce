"""What a client does: `client_app` trains and tests; here stands with what network, on which images."""

import torch
from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from fedcome_flwr.client import client_app
from quickstart import task
from quickstart.data import image_shape, num_classes, test_images, train_images
from quickstart.settings import DataSettings


def model(context: Context) -> nn.Module:
    """The network. Every weight is overwritten by the server's, so none is drawn: `meta` builds it without memory."""
    config = context.run_config
    task.prepare_device(int(config["threads"]))
    settings = DataSettings.from_run_config(config)
    with torch.device("meta"):
        network = task.build_model(str(config["model"]), image_shape(settings), num_classes(settings))
    return network.to_empty(device="cpu")


def images(context: Context) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The client's training and test images, decoded once per process."""
    settings = DataSettings.from_run_config(context.run_config)
    place = int(context.node_config["num-partitions"]), int(context.node_config["partition-id"])
    return train_images(settings, *place), test_images(settings, *place)


def add_objective(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Report `objective` beside `train-loss`: the paper's loss of a client (its figure 2) counts the weight decay."""
    reply = call_next(message, context)
    if message.metadata.message_type == MessageType.TRAIN and reply.has_content():
        metrics = reply.content.metric_records["metrics"]
        if "train-loss" in metrics:
            arrays = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
            penalty = task.decay_penalty(arrays, float(context.run_config["weight-decay"]))
            metrics["objective"] = float(metrics["train-loss"]) + penalty
    return reply


app = client_app(model, images, mods=[add_objective])
