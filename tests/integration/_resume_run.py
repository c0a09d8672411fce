"""A run that can be killed and started again: `python -m tests.integration._resume_run METHOD FOLDER`.

Its clients are on NumPy, so that it starts fast, and keep their memory as those of `fedcome_flwr.client` do.
"""

import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcome_flwr import ConsensusSelection, Method, UpdateStrategy, fedcome, feddc, fedfv
from fedcome_flwr.client.memory import FileStore, StoredMemory
from fedcome_flwr.client.settings import read_rule
from fedcome_flwr.core.local_rule import correction, moved
from fedcome_flwr.report import JsonLines
from fedcome_flwr.simulation import InlineGrid

ROUNDS, SIZE, STEPS, RATE = 120, 40, 3, 0.05
METHODS: dict[str, Method] = {"fedcome": fedcome(), "feddc": feddc(0.1), "fedfv": fedfv(0.2, 2)}


def client_app(folder: Path) -> ClientApp:
    """Each client pulls the model towards a point of its own, with noise from its seed."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client, config = str(context.node_config["partition-id"]), message.content["config"]
        target = np.random.default_rng(int(client)).normal(size=SIZE)
        noise = np.random.default_rng(int(config["client-seed"]))
        rule, epoch, accepted = read_rule(config)
        store, control = FileStore(folder, client), {}
        memory = store.load().confirmed(epoch, accepted)
        assert memory is not None, f"client {client} has not the memory of round {accepted}"
        if rule.control:
            control = {"w": message.content["control"]["w"].numpy()}
        local = correction(rule, memory.accepted, control)
        start = message.content["arrays"]["w"].numpy()
        w, drift, shift = start.copy(), local.drift.get("w", 0.0), local.shift.get("w", 0.0)
        for _ in range(STEPS):
            w = w - RATE * (w - target + 0.1 * noise.normal(size=SIZE) + local.pull * (w - start + drift) + shift)
        after = moved(rule, memory.accepted, {"w": start - w}, control, STEPS * RATE)
        store.save(StoredMemory(epoch, memory.accepted_round, memory.accepted, int(config["server-round"]), after))
        loss = 0.5 * float(np.sum(np.square(start - target)))
        content = {
            "arrays": ArrayRecord({"w": Array(w)}),
            "metrics": MetricRecord({"num-examples": 1, "train-loss": loss, "step-size-sum": STEPS * RATE}),
            "client": ConfigRecord({"client-id": client, "memory-round": memory.accepted_round}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def main(method: str, folder: Path) -> None:
    """Train, from the checkpoint if there is one, and leave the final model's bytes in `final`."""
    strategy = UpdateStrategy(
        method=METHODS[method],
        selector=ConsensusSelection(),
        fraction_train=0.5,
        fraction_evaluate=0.0,
        checkpoint=folder / "run.npz",
        resume=True,
        on_round=JsonLines(folder / "rounds.jsonl"),
    )
    with InlineGrid(client_app(folder / "clients"), 8, debug=True) as grid:
        (folder / "started").touch()
        arrays = ArrayRecord({"w": Array(np.zeros(SIZE))})
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
    (folder / "final").write_bytes(result.arrays["w"].numpy().tobytes())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
