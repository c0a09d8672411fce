"""What a device does: it trains on the folder that `--node-config` names; only models leave it."""

from functools import cache
from pathlib import Path

from flwr.app import Context

from devices import task
from fedcome_flwr.client import client_app

load_data = cache(task.load_data)


def data(context: Context) -> tuple[task.Part, task.Part]:
    """The device's own data, read once per process."""
    root = str(context.run_config["data-root"])
    if "data" in context.node_config:
        folder = Path(str(context.node_config["data"]))
    elif root and "partition-id" in context.node_config:
        folder = Path(root) / str(context.node_config["partition-id"])
    else:
        raise ValueError(
            'data: expected a path in --node-config, such as \'data="/data" client-id="site-1"\'; found none'
        )
    return load_data(folder)


app = client_app(task.build_model, data)
