"""FedAvg and FedCOME on twenty clients that hold two digits each: does anybody lose so that others gain?"""

import argparse
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from flwr.app import Message
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedcome_flwr.report import read_rounds
from fedcome_flwr.simulation import RunObserver, run_app

APP_FOLDER = Path(__file__).parent
CLIENTS = 20
# One small step a round on all of a client's images, since the promise is about gradients. Classes drawn at
# random, equal weights and the full server step are the paper's.
SETTINGS = {
    "batch-size": 0,
    "learning-rate": 0.15,
    "learning-rate-decay": 1.0,
    "class-assignment": "random",
    "client-weights": "uniform",
    "server-step": "1.0",
}
METHODS = {"fedavg": "FedAvg", "fedcome": "FedCOME"}
COLOURS = {"fedavg": "#D55E00", "fedcome": "#0072B2"}  # Okabe and Ito: told apart by everybody
RISE = 1e-6  # below this a change of a float32 loss is rounding


@dataclass(frozen=True)
class Run:
    """What a run's report says, in the order of its rounds."""

    rounds: list[dict[str, Any]]
    seconds: float

    def accuracies(self) -> list[float]:
        """Mean over the clients' own test images."""
        return [
            sum(client["num-examples"] * client["accuracy"] for client in clients)
            / sum(client["num-examples"] for client in clients)
            for clients in (report["evaluations"].values() for report in self.rounds)
        ]

    def worst_accuracy(self) -> float:
        return min(client["accuracy"] for client in self.rounds[-1]["evaluations"].values())

    def objectives(self) -> dict[str, list[float]]:
        """Each client's own loss, weight decay included, of the model it received in each round."""
        clients = self.rounds[0]["clients"]
        return {key: [report["client_metrics"][key]["objective"] for report in self.rounds] for key in clients}

    def rises(self) -> int:
        return sum(after - before > RISE for losses in self.objectives().values() for before, after in pairwise(losses))

    def mean_of(self, name: str) -> float:
        return sum(report[name] for report in self.rounds) / len(self.rounds)


class ShowRounds(RunObserver):
    """Moves a progress bar at the start of each round."""

    def __init__(self, progress: Progress, name: str, rounds: int) -> None:
        self._progress = progress
        self._bar = progress.add_task(name, total=rounds)

    def sent(self, messages: Sequence[Message]) -> None:
        for message in messages[:1]:
            if message.metadata.message_type == "evaluate":
                completed = int(message.content["config"]["server-round"])
                self._progress.update(self._bar, completed=completed)


def run(method: str, rounds: int, seed: int, progress: Progress) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "rounds.jsonl"
        result = run_app(
            APP_FOLDER,
            num_supernodes=CLIENTS,
            run_config=SETTINGS
            | {"strategy": method, "num-server-rounds": rounds, "seed": seed, "report": str(report)},
            seed=seed,
            debug=True,
            observer=ShowRounds(progress, METHODS[method], rounds),
        )
        # Loading PyTorch and the data is no method's fault.
        return Run(read_rounds(report), result.seconds.total - (result.seconds.to_first_round or 0))


def table(runs: dict[str, Run]) -> Table:
    steps = CLIENTS * (len(next(iter(runs.values())).rounds) - 1)
    result = Table(title=f"Digits, {CLIENTS} clients with two classes each, {steps // CLIENTS + 1} rounds")
    result.add_column("")
    for heading in (
        "accuracy",
        "worst client's",
        f"own loss rose (of {steps})",
        "smallest product",
        "seconds",
    ):
        result.add_column(heading, justify="right")
    for method, one in runs.items():
        smallest = min(report["smallest_product"] for report in one.rounds)
        result.add_row(
            METHODS[method],
            f"{one.accuracies()[-1]:.3f}",
            f"{one.worst_accuracy():.3f}",
            str(one.rises()),
            f"{smallest:+.4f}",
            f"{one.seconds:.1f}",
        )
    return result


def plot(runs: dict[str, Run], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib import pyplot as plt

    figure, (left, *panels) = plt.subplots(1, 1 + len(runs), figsize=(12, 3.8), layout="constrained")
    for (method, one), panel, style in zip(runs.items(), panels, ("--", "-"), strict=True):
        name, colour = METHODS[method], COLOURS[method]
        numbers = [report["round"] for report in one.rounds]
        left.plot(numbers, one.accuracies(), style, color=colour, label=name, linewidth=2)
        for losses in one.objectives().values():
            panel.plot(numbers, losses, color=colour, linewidth=0.8, alpha=0.7)
        panel.set(title=f"{name}: each client's own loss\nrose {one.rises()} times", xlabel="round")
        panel.sharey(panels[0])
    left.set(title="Accuracy on the clients' test images", xlabel="round", ylim=(0, 1))
    left.legend(loc="lower right", frameon=False)
    for axes in (left, *panels):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="partition, first weights (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="picture (default: ./demo.png)")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds: at least 2, to compare a round with the one before; got {arguments.rounds}")

    logging.getLogger("flwr").setLevel(logging.WARNING)  # the table says what the log would
    console = Console()
    console.print("FedAvg, then FedCOME: same clients, same first weights. Loading PyTorch takes a moment.")
    with Progress(console=console, transient=True) as progress:
        runs = {method: run(method, arguments.rounds, arguments.seed, progress) for method in METHODS}
    plot(runs, arguments.output)

    console.print(table(runs))
    ratio = runs["fedcome"].mean_of("norm_ratio")
    console.print(
        "own loss rose: how often a client's loss, weight decay included, was higher than a round before. "
        "smallest product: the smallest inner product, over all rounds, of the update with a client's own "
        "(normalised); below 0 that client is hurt.\n"
        f"FedCOME's update is on average {ratio:.1f} times as long as the clients' mean, so part of its "
        "accuracy is a longer step; that nobody is hurt is its direction."
    )
    console.print(f"Picture: {arguments.output.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main()
