"""What a whole round costs in one process: FedCOME and FedAvg beside the same steps in a bare PyTorch loop.

    python benchmarks/whole_rounds.py

100 clients with 600 images of MNIST's size and 100 test images each, 784-64-10, one epoch of batches of 50, all
clients in every round, and an evaluation of all of them. Images are random, since only time is measured. The bare loop
does the same: loads the model for each client, takes the loss before and after, the 12 steps of SGD, averages, and
evaluates. One thread, rounds in turns, medians. A JSON line is added to `benchmarks/results/whole_rounds.jsonl`;
`--quick` does two rounds each, with nothing stored, and `--profile` shows where the time of FedCOME's rounds goes.
"""

import argparse
import cProfile
import logging
import pstats
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from _machine import environment, middle, save
from flwr.app import Array, ArrayRecord
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcome_flwr import FedCOMEStrategy, UniformSelection, UpdateStrategy, fedavg
from fedcome_flwr.client import client_app, model_arrays
from fedcome_flwr.simulation import InlineGrid

CLIENTS, IMAGES, TEST_IMAGES, BATCH = 100, 600, 100, 50
RATE, WEIGHT_DECAY = 0.05, 1e-3
PUBLISHED = 5.1  # seconds of the authors' round of 100 x 500 images with consensus, on two such cores

Pair = tuple[Tensor, Tensor]


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def images(count: int, seed: int) -> Pair:
    """Random images of two classes a client, which is what makes clients disagree."""
    generator = torch.Generator().manual_seed(seed)
    targets = (seed + torch.randint(2, (count,), generator=generator)) % 10
    return torch.randn(count, 1, 28, 28, generator=generator) + targets[:, None, None, None] / 5, targets


def bare_rounds(data: list[tuple[Pair, Pair]]) -> Iterator[None]:
    """The same work without Flower and without us."""
    model, weights = build(), build().state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(0)
    while True:
        total = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        for (inputs, targets), _ in data:
            model.load_state_dict(weights)
            loss(model, inputs, targets)
            for chosen in torch.randperm(len(targets), generator=generator).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
                optimizer.step()
            loss(model, inputs, targets)
            for name, tensor in model.state_dict().items():
                total[name] += tensor / len(data)
        weights = total
        model.load_state_dict(weights)
        for _, (inputs, targets) in data:
            loss(model, inputs, targets)
        yield


@torch.no_grad()
def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, int]:
    outputs = model(inputs)
    return cross_entropy(outputs, targets).item(), int((outputs.argmax(1) == targets).sum().item())


def federation(strategy: UpdateStrategy, data: list[tuple[Pair, Pair]]) -> Callable[[], None]:
    """One round of a federation that goes on."""
    app = client_app(
        build,
        lambda context: data[int(context.node_config["partition-id"])],
        learning_rate=RATE,
        weight_decay=WEIGHT_DECAY,
        batch_size=BATCH,
    )
    grid = InlineGrid(app, CLIENTS)
    arrays = [ArrayRecord({name: Array(array) for name, array in model_arrays(build()).items()})]

    def play() -> None:
        with grid:
            arrays[0] = strategy.start(grid=grid, initial_arrays=arrays[0], num_rounds=1).arrays

    return play


def arms() -> dict[str, Callable[[], None]]:
    """A round of each, on the same data."""
    data = [(images(IMAGES, client), images(TEST_IMAGES, client)) for client in range(CLIENTS)]
    bare = bare_rounds(data)
    return {
        "bare PyTorch": lambda: next(bare),
        "FedAvg": federation(UpdateStrategy(method=fedavg(), selector=UniformSelection()), data),
        "FedCOME": federation(FedCOMEStrategy(), data),
    }


def profile(play: Callable[[], None], rounds: int) -> None:
    play()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(rounds):
        play()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Measure, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two rounds of each, nothing stored")
    parser.add_argument("--profile", action="store_true", help="where FedCOME's time goes, nothing stored")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rounds = 2 if arguments.quick else arguments.rounds
    plays = arms()
    if arguments.profile:
        profile(plays["FedCOME"], rounds)
        return
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    for number in range(rounds + 2):
        for name, play in plays.items():
            started = perf_counter()
            play()
            if number > 1:  # the first round asks clients for their names, the second is the first without
                seconds[name].append(perf_counter() - started)
    line = {**environment("fedcome-flwr", "flwr", "torch"), "rounds": rounds, "seconds": middle(seconds)}
    if not arguments.quick:
        save("whole_rounds", [line])
    print_table(line["seconds"])


def print_table(seconds: dict[str, float]) -> None:
    table = Table(title=f"{CLIENTS} clients x {IMAGES} images, one epoch, and all evaluations: seconds a round")
    for heading in ("", "seconds", "to bare PyTorch", "to FedAvg", "to the published code"):
        table.add_column(heading, justify="right")
    for name, value in seconds.items():
        of = (value / seconds["bare PyTorch"], value / seconds["FedAvg"], value / PUBLISHED)
        table.add_row(name, f"{value:.3f}", *(f"{ratio:.2f}" for ratio in of))
    Console().print(table)


if __name__ == "__main__":
    main()
