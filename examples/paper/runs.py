"""Which runs each table and figure is made of."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from examples.paper.protocol import (
    ARMS,
    COMMON,
    CONTROLS,
    DATASETS,
    GRID_DATASETS,
    GRID_ROUNDS,
    METHODS,
    REMEDIES,
    SEARCH,
    STEPS,
    Config,
    Scale,
    chosen,
)

Study = Literal["accuracy", "losses", "grid"]
TARGETS = ("table1", "table2", "table3", "table4", "table5", "steps", "figure1", "figure2", "figure3", "figure4")
LOSS_ARMS = ("fedavg", "fedcome")


@dataclass(frozen=True)
class Run:
    """One training, from the first round to the last.

    Attributes
    ----------
    study
        ``"accuracy"``: clients are tested on their test images; ``"losses"``: on their training images, one full-batch
        step a round (figures 2 and 3); ``"grid"``: on a held-out fifth of their training images.
    participation
        Share of the clients in a round.
    classes
        Classes a client holds; 0 where the clients are the data set's own.
    config
        What the quickstart's run configuration gets, the paths apart.
    """

    study: Study
    dataset: str
    arm: str
    selection: str
    participation: float
    classes: int
    seed: int
    rounds: int
    clients: int
    config: Config = field(hash=False)

    @property
    def name(self) -> str:
        """Name of its file; the last part tells apart runs whose configurations differ."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:8]
        study = "" if self.study == "accuracy" else f"{self.study}-"
        percent = round(100 * self.participation)
        return f"{study}{self.dataset}-{self.arm}-{self.selection}-p{percent}-s{self.seed}-{digest}"

    def header(self) -> dict[str, Any]:
        """The first line of its file, the versions and the command apart."""
        return {
            "kind": "run",
            "study": self.study,
            "dataset": self.dataset,
            "arm": self.arm,
            "selection": self.selection,
            "participation": self.participation,
            "classes": self.classes,
            "seed": self.seed,
            "rounds": self.rounds,
            "clients": self.clients,
            "settings": self.config,
        }


def make_run(
    scale: Scale,
    dataset: str,
    arm: str,
    seed: int,
    *,
    study: Study = "accuracy",
    selection: str = "uniform",
    participation: float = 1.0,
    classes: int = 2,
    rounds: int | None = None,
    **changes: Any,
) -> Run:
    """A run at this scale; ``changes`` are keys of the run configuration, with underscores."""
    rounds = rounds or scale.rounds[dataset]
    config = COMMON | dict(DATASETS[dataset].config) | dict(scale.config.get(dataset, {}))
    config |= dict(ARMS[arm].config) | chosen(dataset, arm)
    config |= {"selection": selection, "fraction-train": participation, "num-server-rounds": rounds, "seed": seed}
    if config["partition"] == "classes":
        config["classes-per-client"] = classes
    else:
        classes = 0
    match study:
        case "losses":
            config |= {"batch-size": 0, "learning-rate": 0.01, "evaluate-on": "train"}
        case "grid":
            config |= {"evaluate-on": "validation", "global-test-every": rounds}
        case _:
            config |= {"global-test-every": 10} | dict(scale.testing.get(dataset, {}))
    config |= {name.replace("_", "-"): value for name, value in changes.items()}
    return Run(study, dataset, arm, selection, participation, classes, seed, rounds, scale.clients[dataset], config)


@dataclass(frozen=True)
class Choice:
    """What the command line narrows the runs down to; empty: everything."""

    datasets: Sequence[str] = ()
    arms: Sequence[str] = ()
    seeds: Sequence[int] = ()

    def among(self, datasets: Iterable[str]) -> list[str]:
        """Those of the data sets that were asked for."""
        return [name for name in datasets if not self.datasets or name in self.datasets]

    def arms_among(self, arms: Iterable[str]) -> list[str]:
        """Those of the arms that were asked for."""
        return [name for name in arms if not self.arms or name in self.arms]


def runs_of(target: str, scale: Scale, choice: Choice) -> list[Run]:
    """The runs behind a table or figure, seed by seed, so that an unfinished one has its first seed first."""
    everything = (*METHODS, *CONTROLS)
    runs: list[Run] = []

    def add(dataset: str, arms: Sequence[str], **settings: Any) -> None:
        for seed in choice.seeds or scale.seeds[dataset]:
            runs.extend(make_run(scale, dataset, arm, seed, **settings) for arm in choice.arms_among(arms))

    match target:
        case "table1" | "figure1":
            for dataset in choice.among(DATASETS):
                add(dataset, (*everything, *REMEDIES.get(dataset, ())))
        case "table2":
            for classes in (2, 3, 4):
                for dataset in choice.among(["cifar10"]):
                    add(dataset, everything, classes=classes)
        case "table3":
            for dataset, share, selection in itertools.product(
                choice.among(scale.partial), scale.shares, ("uniform", "consensus")
            ):
                add(dataset, everything, participation=share, selection=selection)
        case "table4":
            for dataset, alpha, mu in itertools.product(choice.among(scale.partial), scale.grid4, scale.grid4):
                changes = {"selection_alpha": alpha, "selection_mu": mu}
                add(dataset, ["fedcome"], participation=0.2, selection="consensus", **changes)
        case "steps":
            for dataset, share in itertools.product(choice.among(scale.partial), (1.0, 0.2)):
                add(dataset, STEPS, participation=share)
        case "figure2" | "figure3":
            for dataset in choice.among(["mnist", "cifar10"]):
                shared = {"study": "losses", "rounds": scale.loss_rounds}
                if target == "figure2":
                    add(dataset, LOSS_ARMS, **shared)
                else:
                    for selection in ("uniform", "consensus"):
                        add(dataset, ["fedcome"], participation=0.2, selection=selection, **shared)
            if not choice.seeds:
                runs = [run for run in runs if run.seed == 0]
        case "figure4":
            for dataset in choice.among(["femnist", "cifar10"]):
                add(dataset, ["fedfv", "fedcome"])
        case "table5" | "grid":
            runs = grid_runs(scale, choice)
        case _:
            raise ValueError(f"target: expected one of {', '.join((*TARGETS, 'grid'))}; found {target!r}")
    return sorted(runs, key=lambda run: run.seed)


def grid_runs(scale: Scale, choice: Choice) -> list[Run]:
    """Every point of the search spaces, one seed, on a held-out fifth of the clients' training images."""
    runs = []
    for dataset in choice.among(GRID_DATASETS):
        for arm in choice.arms_among(SEARCH):
            for values in itertools.product(*SEARCH[arm].values()):
                changes = {name.replace("-", "_"): value for name, value in zip(SEARCH[arm], values, strict=True)}
                runs.append(make_run(scale, dataset, arm, 0, study="grid", rounds=GRID_ROUNDS, **changes))
    return runs
