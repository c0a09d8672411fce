"""Federations of `client_app`s in this process."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedcome_flwr import FedCOMEStrategy
from fedcome_flwr.client import client_app, model_arrays
from fedcome_flwr.simulation import InlineGrid
from tests.unit.client._models import examples, linear

STEP = {"batch_size": 0, "learning_rate": 0.3}


def own_data(context):
    """Each client another task: its own draws, and 10, 11, … of them."""
    partition = int(context.node_config["partition-id"])
    return examples(10 + partition, seed=partition), examples(5, seed=100 + partition)


def record(arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def federate(app=None, *, model=linear, nodes=3, rounds=2, strategy=None, debug=True, **options):
    """Flower's result and, by client key, the last report's evaluations."""
    strategy = strategy or FedCOMEStrategy(fraction_train=1.0, seed=0)
    with InlineGrid(app or client_app(model, own_data, **STEP), nodes, debug=debug, **options) as grid:
        arrays = record(model_arrays(model()))
        return strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)


def ask(app, kind, arrays=None, *, run_config=None, **config) -> RecordDict:
    """One client's reply to one message."""
    content = RecordDict({"config": ConfigRecord({key.replace("_", "-"): value for key, value in config.items()})})
    if arrays is not None:
        content["arrays"] = record(arrays)
    with InlineGrid(app, 1, run_config=run_config, debug=True) as grid:
        [reply] = grid.send_and_receive([Message(content, grid.get_node_ids()[0], kind)])
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        return reply.content


def numbers(record_of_arrays: ArrayRecord):
    return {name: array.numpy() for name, array in record_of_arrays.items()}
