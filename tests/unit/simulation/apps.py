"""Small apps that the tests of the simulation and of the command share."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

PYPROJECT = """
[project]
name = "tiny"
version = "1.0.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "tiny.server_app:app"
clientapp = "tiny.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 2
lr = 0.5
fail = "none"
seed = 0

[tool.flwr.app.config.model]
size = 3
"""

CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from tiny.task import NAME

app = ClientApp()

def answer(message, context):
    partition = context.node_config["partition-id"]
    if context.run_config["fail"] == "clients" or context.run_config["fail"] == f"client {partition}":
        raise ValueError(f"no data at {NAME} {partition}")
    weights = message.content["arrays"]["w"].numpy()
    weights = weights + context.run_config["lr"] * np.random.normal(size=weights.shape) + partition
    metrics = MetricRecord({"num-examples": 1 + partition, "loss": float(partition)})
    arrays = ArrayRecord({"w": Array(weights)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

app.train()(answer)

@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"num-examples": 1, "accuracy": 0.25})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""

SERVER = """
import logging
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from tiny.task import NAME

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    if config["fail"] == "server":
        raise RuntimeError("the disk is full")
    logging.getLogger("flwr").info("fedcome: a line of ours")
    logging.getLogger("flwr").warning("a warning of Flower's")
    FedAvg(fraction_train=0.5).start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(np.zeros(config["model.size"]))}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=lambda server_round, arrays: MetricRecord({"global-loss": 1.0 / (1 + server_round)}),
    )
    context.state["note"] = MetricRecord({"seed": config["seed"]})
    print("name", NAME)
"""


def write_app(folder: Path, name: str = "tiny", pyproject: str = PYPROJECT) -> Path:
    """An ordinary Flower App with package `tiny`; `name` is a constant in it."""
    package = folder / "tiny"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(pyproject)
    (package / "__init__.py").touch()
    (package / "task.py").write_text(f"NAME = {name!r}\n")
    (package / "client_app.py").write_text(CLIENT)
    (package / "server_app.py").write_text(SERVER)
    return folder


def adding_client() -> ClientApp:
    """Adds its partition id to every array and counts its calls in its context."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        calls = context.state.setdefault("calls", MetricRecord({"n": 0}))
        calls["n"] += 1
        partition = context.node_config["partition-id"]
        arrays = {name: Array(a.numpy() + partition) for name, a in message.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 1, "calls": calls["n"]})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def zeros(*shape: int) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(shape))})
