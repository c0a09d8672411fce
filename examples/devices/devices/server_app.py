"""What the server does: FedCOME over whoever is online."""

import os
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from devices import task
from fedcome_flwr import FedCOMEStrategy
from fedcome_flwr.report import JsonLines

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    least = int(config["least-devices"])
    strategy = FedCOMEStrategy(
        min_train_nodes=least,
        min_evaluate_nodes=least,
        min_available_nodes=least,
        node_timeout=float(config["node-timeout"]),
        seed=int(config["seed"]),
        checkpoint=str(config["checkpoint"]) or None,
        resume=bool(config["resume"]),
        on_round=JsonLines(str(config["report"])) if config["report"] else None,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial_model(int(config["seed"])).state_dict()),
        num_rounds=int(config["num-server-rounds"]),
    )
    if config["output"]:
        save(Path(str(config["output"])), result.arrays)


def save(path: Path, arrays: ArrayRecord) -> None:
    """Write the model, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        np.savez(file, **{name: array.numpy() for name, array in arrays.items()})
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
