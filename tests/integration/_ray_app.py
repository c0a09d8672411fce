"""A Flower App without PyTorch whose clients say who they are, draw from their seed, and fail on request."""

from pathlib import Path

PYPROJECT = """
[project]
name = "noisy"
version = "1.0.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "noisy.server_app:app"
clientapp = "noisy.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 3
lr = 0.5
flag = false
text = ""
output = ""
"raise" = "none"  # a partition, or all
die = "none"
"""

CLIENT = """
import os
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def reply(message, context, **records):
    client = ConfigRecord({"client-id": str(context.node_config["partition-id"])})
    return Message(RecordDict({"client": client, **records}), reply_to=message)

@app.query()
def query(message, context):
    return reply(message, context)

@app.train()
def train(message, context):
    config, partition = context.run_config, context.node_config["partition-id"]
    if config["raise"] in ("all", str(partition)):
        raise ValueError(f"no data at {partition}")
    if config["die"] == str(partition):
        os._exit(1)
    calls = context.state.setdefault("calls", MetricRecord({"n": 0}))
    calls["n"] += 1
    noise = np.random.default_rng(message.content["config"]["client-seed"]).normal(size=4)
    w = message.content["arrays"]["w"].numpy() + config["lr"] * (noise + partition)
    metrics = MetricRecord({"num-examples": 1 + partition, "text": len(config["text"]), "flag": int(config["flag"])})
    return reply(message, context, arrays=ArrayRecord({"w": Array(w)}), metrics=metrics)

@app.evaluate()
def evaluate(message, context):
    if context.run_config["raise"] == "all":
        raise ValueError("no data to test on")
    calls = context.state["calls"]["n"] if "calls" in context.state else 0
    return reply(message, context, metrics=MetricRecord({"num-examples": 1, "calls": calls}))
"""

SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from fedcome_flwr import FedCOMEStrategy

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    result = FedCOMEStrategy(fraction_train=0.5).start(
        grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=config["num-server-rounds"]
    )
    if config["output"]:
        np.save(config["output"], result.arrays["w"].numpy())
"""


def write_noisy_app(folder: Path) -> Path:
    package = folder / "noisy"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "client_app.py").write_text(CLIENT)
    (package / "server_app.py").write_text(SERVER)
    return folder
