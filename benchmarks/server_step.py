"""What aggregating a round costs the server: FedCOME's `aggregate_train` beside Flower's FedAvg on the same replies.

    python benchmarks/server_step.py            # all cases, about five minutes
    python benchmarks/server_step.py --quick    # under a minute
    python benchmarks/server_step.py --case 20 5000000

A case is a number of clients and a number of float32 parameters, in ten arrays; every reply's values are its own. Both
strategies take turns on the same messages, each case in a process of its own. Beside them stand what it takes to read
every reply once and the parts of ours. Peak memory, beyond the replies, is measured in a call that is not timed. JSON
lines are added to `benchmarks/results/server_step.jsonl`; a full run draws `docs/server_step.png`.
"""

import logging
import tracemalloc
from time import process_time
from typing import Any

import numpy as np
from _machine import DOCS, MIB, main, middle, require_memory, slope, timed
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from rich.console import Console
from rich.table import Table

from fedcome_flwr import FedCOMEStrategy, UpdateStrategy
from fedcome_flwr.core import ClientUpdate
from fedcome_flwr.core.gram import apply_combination, gram_matrix
from fedcome_flwr.server.records import to_arrays, to_record
from fedcome_flwr.simulation import InlineGrid

QUICK = [(10, 100_000), (10, 1_700_000), (30, 1_700_000)]
OVER_CLIENTS = [(m, 1_700_000) for m in (2, 10, 30, 100)]
OVER_SIZE = [(10, d) for d in (10_000, 100_000, 1_700_000, 11_000_000, 40_000_000)]
CASES = sorted({*OVER_CLIENTS, *OVER_SIZE})
ARRAYS = 10


def model(size: int, seed: int) -> ArrayRecord:
    values = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
    return ArrayRecord({f"layer{i}.weight": Array(part) for i, part in enumerate(np.array_split(values, ARRAYS))})


def memory_needed(clients: int, size: int) -> int:
    """Bytes, estimated: the replies, one more while it is written, both strategies' models, and the programs."""
    return 4 * size * (clients + 6) + 200 * clients**2 + 400 * MIB


def measure(clients: int, size: int, repeats: int) -> dict[str, Any]:
    """One case: medians of seconds, and peak memory beyond the replies."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    require_memory(memory_needed(clients, size), f"the case of {clients} clients and {size} parameters")
    broadcast = model(size, 0)
    with InlineGrid(ClientApp(), clients) as grid:
        strategies = {"fedcome": FedCOMEStrategy(seed=0), "fedavg ours": UpdateStrategy(), "fedavg flower": FedAvg()}
        for strategy in strategies.values():  # replies to the last one's messages, Flower's, are of no certain round
            asked = list(strategy.configure_train(1, broadcast, ConfigRecord(), grid))
        models = [model(size, 1 + number) for number in range(len(asked))]
        calls = {
            name: lambda strategy=strategy: strategy.aggregate_train(1, replies(asked, models))
            for name, strategy in strategies.items()
        }
        line: dict[str, Any] = {"clients": clients, "parameters": size, "seconds": middle(timed(calls, repeats))}
        line["cpu_seconds"] = middle(timed(calls, max(1, repeats // 2), process_time))
        line["peak_mib"] = {name: round(traced_peak(call) / MIB, 1) for name, call in calls.items()}
        line["model_mib"] = round(4 * size / MIB, 1)
        line["parts"] = parts(broadcast, models, repeats)
    return line


def replies(asked: list[Message], models: list[ArrayRecord]) -> list[Message]:
    """One reply a client, new ones for every call, since our strategies take the arrays out of them."""
    return [
        Message(
            RecordDict(
                {
                    "arrays": ArrayRecord(dict(arrays)),
                    "metrics": MetricRecord({"num-examples": 10 + number, "train-loss": 1.0}),
                }
            ),
            reply_to=message,
        )
        for number, (message, arrays) in enumerate(zip(asked, models, strict=True))
    ]


def traced_peak(call: Any) -> int:
    """The most memory that the call holds beyond what was there before; NumPy's arrays are seen."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def parts(broadcast: ArrayRecord, models: list[ArrayRecord], repeats: int) -> dict[str, float]:
    """Seconds of the two passes and of what surrounds them, and of reading every reply once and no more."""
    reference = to_arrays(broadcast)
    updates = [ClientUpdate(f"{i:05d}", to_arrays(record), 1.0) for i, record in enumerate(models)]
    coefficients = np.full(len(updates), 1 / len(updates))
    names = tuple(reference)
    calls = {
        "read once": lambda: [array.max() for update in updates for array in update.arrays.values()],
        "gram matrix": lambda: gram_matrix(reference, updates, names),
        "combination": lambda: apply_combination(reference, updates, names, coefficients),
        "serialisation": lambda: to_record(reference),
    }
    return middle(timed(calls, repeats))


def print_table(lines: list[dict[str, Any]]) -> None:
    table = Table(title="aggregate_train: medians; ratio to Flower's FedAvg; peak beyond the replies, in models")
    headings = [
        "clients",
        "parameters",
        "FedAvg",
        "FedCOME",
        "ratio",
        "of CPU",
        "read once",
        "Gram",
        "combine",
        "write",
    ]
    for heading in [*headings, "peak"]:
        table.add_column(heading, justify="right")
    for line in sorted(lines, key=lambda line: (line["clients"], line["parameters"])):
        seconds, cpu, of = line["seconds"], line["cpu_seconds"], line["parts"]
        beyond = line["peak_mib"]["fedcome"] - 2 * line["model_mib"]
        table.add_row(
            f"{line['clients']:,}",
            f"{line['parameters']:,}",
            f"{1000 * seconds['fedavg flower']:.1f} ms",
            f"{1000 * seconds['fedcome']:.1f} ms",
            f"{seconds['fedcome'] / seconds['fedavg flower']:.2f}",
            f"{cpu['fedcome'] / cpu['fedavg flower']:.2f}",
            *(f"{1000 * of[name]:.1f}" for name in ("read once", "gram matrix", "combination", "serialisation")),
            f"2 {beyond:+.0f} MiB",
        )
    Console(width=120).print(table)


def draw(lines: list[dict[str, Any]]) -> None:
    """Seconds over the clients of a round and over the model's size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    stored = {(line["clients"], line["parameters"]): line for line in lines}
    groups = [
        ("clients", "clients a round, 1.7 million parameters", OVER_CLIENTS),
        ("parameters", "parameters, 10 clients a round", OVER_SIZE),
    ]
    curves = [
        ("FedCOME", "tab:blue", lambda line: line["seconds"]["fedcome"]),
        ("Flower's FedAvg", "tab:gray", lambda line: line["seconds"]["fedavg flower"]),
        ("Gram matrix", "tab:orange", lambda line: line["parts"]["gram matrix"]),
        ("combination", "tab:green", lambda line: line["parts"]["combination"]),
        ("reading the replies once", "tab:red", lambda line: line["parts"]["read once"]),
    ]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for axis, (entry, label, cases) in zip(axes, groups, strict=True):
        found = [stored[case] for case in cases if case in stored]
        for name, colour, value in curves:
            sizes, seconds = [line[entry] for line in found], [value(line) for line in found]
            text = f"{name}, slope {slope(sizes, seconds):.1f}"
            axis.loglog(sizes, seconds, "o-", color=colour, label=text, linewidth=1 + (name == "FedCOME"))
        axis.set_xlabel(label)
        axis.grid(which="major", alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("seconds a round")
    figure.suptitle("The server's step; slopes through the last two points")
    figure.savefig(DOCS / "server_step.png", dpi=110)


if __name__ == "__main__":
    main(
        "server_step",
        measure,
        CASES,
        QUICK,
        identity=("clients", "parameters"),
        repeats=7,
        packages=("fedcome-flwr", "flwr", "numpy", "scipy"),
        draw=draw,
        print_table=print_table,
        description=__doc__,
    )
