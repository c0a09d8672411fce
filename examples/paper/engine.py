"""One run from its first round to its file."""

import json
import logging
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, MetricRecord

from examples.paper import store
from examples.paper.protocol import APP, DATASETS, RESULTS
from examples.paper.runs import Run
from fedcome_flwr.report import read_rounds
from fedcome_flwr.server.checkpoint import load_checkpoint
from fedcome_flwr.simulation import run_app
from fedcome_flwr.simulation.observer import Phase, RunObserver

WORK = RESULTS / "unfinished"  # reports and checkpoints of runs that are not done; a run that ends removes its own
RISE = 1e-6  # below this a change of a float32 loss is rounding
EVERY = 10  # rounds between two kept lists of all clients' accuracies, and between checkpoints
KEPT = (
    "hurt_by_mean",
    "hurt_by_direction",
    "smallest_product",
    "norm_ratio",
    "server_step",
    "update_norm",
    "smoothness_limit",
    "relative_change",
    "remaining_conflicts",
    "certified",
)
WITH_MEMORY = ("scaffold", "feddyn", "feddc")


def execute(run: Run, *, data: Path | None, backend: str, device: str, command: str) -> dict[str, Any]:
    """Run it, or go on with it, keep it, and return its last line."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    folder = WORK / run.name
    report, checkpoint = folder / "rounds.jsonl", folder / "run.npz"
    resume = _can_go_on(report, checkpoint)
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    remembers = run.config.get("strategy") in WITH_MEMORY
    config = run.config | {
        "dataset": str(data / run.dataset) if data else DATASETS[run.dataset].hub,
        "report": str(report),
        "checkpoint": "" if run.config.get("coordinate-bound") else str(checkpoint),
        "checkpoint-every": 1 if remembers else EVERY,
        "state-dir": str(folder / "state") if remembers else "",
    }
    traffic = Traffic(folder / "traffic.jsonl", run.rounds)
    started = time.perf_counter()
    on_gpu = {"client_gpus": 0.1} if backend == "ray" and device == "cuda" else {}
    run_app(
        APP,
        num_supernodes=run.clients,
        run_config=config,
        seed=run.seed,
        backend=backend,
        resume=checkpoint if resume else None,
        observer=traffic,
        **on_gpu,
    )
    rounds = read_rounds(report)
    if len(rounds) != run.rounds:
        raise RuntimeError(f"{run.name}: expected {run.rounds} rounds, found {len(rounds)}; {report} has them")
    end = {
        "kind": "end",
        "seconds": round(time.perf_counter() - started, 1),
        "resumed": resume,
        "backend": backend,
        "device": device,
    }
    versions = {package: version(package) for package in ("fedcome-flwr", "flwr", "torch", "numpy", "scipy")}
    header = run.header() | {"versions": versions | {"python": sys.version.split()[0]}, "command": command}
    store.write(run.name, [header, *round_lines(run, rounds, traffic.by_round()), end])
    shutil.rmtree(folder)
    return end


def _can_go_on(report: Path, checkpoint: Path) -> bool:
    """Whether the checkpoint and the report of the rounds before it are there.

    A checkpoint is written when a round has trained, its report when it was tested, too: a run that was stopped in
    between has a round that nobody reported, and begins again.
    """
    if not (report.exists() and checkpoint.exists()):
        return False
    return load_checkpoint(checkpoint).state.round <= report.read_bytes().count(b"\n")


def round_lines(
    run: Run, rounds: Sequence[Mapping[str, Any]], traffic: Mapping[int, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """What is kept of each round's report.

    ``accuracy`` is the mean over the clients weighted by their test images, ``rises`` the number of clients that find
    their own loss, weight decay included, above the one that they had last, of ``rises_of`` that had one before; in the
    study of losses every client has one in every round, else those of the round.
    """
    lines = []
    last: dict[str, float] = {}
    for report in rounds:
        evaluations = report["evaluations"]
        sizes = [client["num-examples"] for client in evaluations.values()]
        accuracies = {key: client["accuracy"] for key, client in evaluations.items()}
        trained = {key: metrics["objective"] for key, metrics in report["client_metrics"].items()}
        if run.study == "losses":
            penalty = report["server_metrics"]["decay-penalty"]
            now = {key: client["loss"] + penalty for key, client in evaluations.items()}
        else:
            now = trained
        chosen = set(report["clients"])
        risen = [key for key, loss in now.items() if key in last and loss > last[key] + RISE]
        line = {
            "kind": "round",
            "round": report["round"],
            "accuracy": float(np.average(list(accuracies.values()), weights=sizes)),
            "global_accuracy": report["server_metrics"].get("accuracy"),
            "worst_client": min(accuracies.values()),
            "spread": float(np.std(list(accuracies.values()))),
            "loss": float(np.mean(list(trained.values()))) if trained else None,
            "rises": len(risen),
            "rises_of": len(now.keys() & last.keys()),
            "rises_unselected": len([key for key in risen if key not in chosen]) if run.study == "losses" else None,
            "conflicts": report["conflicting_pairs"],
            **{name: report[name] for name in KEPT},
            "bytes_up": traffic.get(report["round"], {}).get("up"),
            "bytes_down": traffic.get(report["round"], {}).get("down"),
            "clients": len(report["clients"]),
            "left_out": len(report["left_out"]) + len(report["missing"]),
            "seconds": sum(report["seconds"].values()),
        }
        if run.study == "losses":
            line["client_losses"] = {key: _short(loss) for key, loss in sorted(now.items())}
            line["chosen"] = sorted(chosen) if run.participation < 1 else None
        if report["round"] % EVERY == 0 or report["round"] == run.rounds:
            line["client_accuracies"] = {key: _short(value) for key, value in sorted(accuracies.items())}
        lines.append({key: _short(value) for key, value in line.items() if value is not None})
        last |= now
    return lines


class Traffic(RunObserver):
    """Counts the bytes of the arrays in training messages and replies, each array once, into a file that a resumed run
    goes on with."""

    def __init__(self, path: Path, rounds: int) -> None:
        self._path = path
        self._rounds = rounds
        self._before = 0  # rounds that were played before the strategy started, which counts from 1
        self._down = self._up = 0

    def started(self, num_rounds: int | None) -> None:
        """Learn how many rounds are left."""
        self._before = self._rounds - (num_rounds or 0)

    def sent(self, messages: Sequence[Message]) -> None:
        """Count what goes to the clients."""
        self._down += sum(map(_array_bytes, messages))

    def replied(self, message: Message, reply: Message) -> None:
        """Count what comes back."""
        if reply.has_content():
            self._up += _array_bytes(reply)

    def aggregated(self, phase: Phase, server_round: int, metrics: MetricRecord) -> None:
        """Write a training phase's line."""
        if phase == "train":
            with self._path.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"round": self._before + server_round, "up": self._up, "down": self._down}) + "\n"
                )
            self._down = self._up = 0

    def by_round(self) -> dict[int, dict[str, int]]:
        """Bytes ``up`` and ``down`` by round; of a round that was played twice the second time."""
        if not self._path.exists():
            return {}
        lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return {line["round"]: line for line in lines}


def _array_bytes(message: Message) -> int:
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return 0
    # Our messages carry the model under Flower's two names, one object: it travels once.
    records = {id(record): record for record in message.content.array_records.values()}
    return sum(len(array.data) for record in records.values() for array in record.values())


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
