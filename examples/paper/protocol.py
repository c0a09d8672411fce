"""What the paper's experiments have in common: data sets, scales, methods, search spaces."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
APP = HERE.parent / "quickstart"
RESULTS = HERE / "results"
CHOICES = RESULTS / "grid.json"  # what `grid` found, by data set and method

Config = dict[str, Any]

# SGD, batch 50, weight decay 1e-3, rate 0.05 · 0.998^round and one local epoch are the quickstart's own defaults; they
# are written out so that a change there changes nothing here. No gradient is clipped, in no method; where one diverges
# so, an arm of its own clips (REMEDIES).
COMMON: Config = {
    "learning-rate": 0.05,
    "learning-rate-decay": 0.998,
    "weight-decay": 1e-3,
    "momentum": 0.0,
    "batch-size": 50,
    "local-epochs": 1,
    "client-weights": "uniform",
    "partition": "classes",
    "class-assignment": "random",
}


@dataclass(frozen=True)
class DataSet:
    """A data set of the paper: where the hub has it, and how its experiments differ from the others'."""

    title: str
    hub: str
    rounds: int  # of the authors' code
    config: Mapping[str, Any]


DATASETS = {
    "mnist": DataSet("MNIST", "ylecun/mnist", 200, {}),
    "femnist": DataSet(
        "FEMNIST",
        "flwrlabs/femnist",
        250,
        {"partition": "natural", "partition-column": "writer_id", "least-images": 10},
    ),
    "cifar10": DataSet("CIFAR-10", "uoft-cs/cifar10", 500, {}),
    "cifar100": DataSet("CIFAR-100", "uoft-cs/cifar100", 600, {"local-epochs": 5}),
}


@dataclass(frozen=True)
class Scale:
    """How much of the paper is run: rounds, clients, seeds and images by data set.

    ``config`` holds for all runs on a data set, ``testing`` for those that measure accuracy. ``partial`` are the data
    sets of the tables with partial participation, ``shares`` their participations, ``grid4`` the values of α and µ of
    table 4.
    """

    name: str
    rounds: Mapping[str, int]
    clients: Mapping[str, int]
    seeds: Mapping[str, tuple[int, ...]]
    loss_rounds: int
    config: Mapping[str, Mapping[str, Any]]
    testing: Mapping[str, Mapping[str, Any]]
    partial: tuple[str, ...]
    shares: tuple[float, ...]
    grid4: tuple[float, ...]


FEW_IMAGES = {"images-per-client": 50}
FEWER_TESTS = {"test-images-per-client": 25, "train-loss-after": False, "global-test-every": 50}  # a third of the time
SCALES = {
    "paper": Scale(
        name="paper",
        rounds={name: data.rounds for name, data in DATASETS.items()},
        clients=dict.fromkeys(DATASETS, 100),
        seeds=dict.fromkeys(DATASETS, (0, 1, 2)),
        loss_rounds=200,
        config={},
        testing={},
        partial=("cifar10",),
        shares=(0.1, 0.2, 0.3, 0.4),
        grid4=(0.1, 0.3, 0.5, 0.7, 0.9),
    ),
    # What two cores can do in days, not weeks.
    "small": Scale(
        name="small",
        rounds={"mnist": 200, "femnist": 100, "cifar10": 100, "cifar100": 40},
        clients={"mnist": 100, "femnist": 99, "cifar10": 100, "cifar100": 100},
        seeds={"mnist": (0, 1, 2), "femnist": (0,), "cifar10": (0, 1, 2), "cifar100": (0,)},
        loss_rounds=60,
        config={"cifar10": FEW_IMAGES, "cifar100": FEW_IMAGES},
        testing={"cifar10": FEWER_TESTS, "cifar100": FEWER_TESTS},
        partial=("mnist", "cifar10"),
        shares=(0.1, 0.2),
        grid4=(0.1, 0.5, 0.9),
    ),
}


@dataclass(frozen=True)
class Arm:
    """One column of a comparison: a method, or one of the controls that tell direction from step length."""

    title: str
    config: Mapping[str, Any]
    published: Mapping[str, Any]  # hyperparameters of its authors, where `grid` chose none
    control: bool = False
    remedy_of: str = ""  # the method, with its hyperparameters, that diverges without this arm's change


ARMS = {
    "fedavg": Arm("FedAvg", {"strategy": "fedavg"}, {}),
    "fedprox": Arm("FedProx", {"strategy": "fedprox"}, {"fedprox-mu": 0.01}),
    "scaffold": Arm("SCAFFOLD", {"strategy": "scaffold"}, {}),
    "feddyn": Arm("FedDyn", {"strategy": "feddyn"}, {"feddyn-alpha": 0.01}),
    "fedfv": Arm("FedFV", {"strategy": "fedfv"}, {"fedfv-alpha": 0.1, "fedfv-tau": 1}),
    "feddc": Arm("FedDC", {"strategy": "feddc"}, {"feddc-alpha": 0.1}),
    "fedcome": Arm("FedCOME", {"strategy": "fedcome", "server-step": "1.0"}, {}),
    "fedcome-adaptive": Arm("FedCOME, adaptive step", {"strategy": "fedcome", "server-step": "adaptive"}, {}, True),
    "fedcome-at-mean-norm": Arm("FedCOME at FedAvg's length", {"weighting": "consensus-at-mean-norm"}, {}, True),
    "fedavg-at-fedcome-norm": Arm("FedAvg at FedCOME's length", {"weighting": "mean-at-consensus-norm"}, {}, True),
}
OTHER_VALUES = {"cifar10": {"feddc": {"feddc-alpha": 0.01}}, "cifar100": {"feddc": {"feddc-alpha": 0.01}}}  # published
METHODS = tuple(name for name, arm in ARMS.items() if not arm.control)
CONTROLS = tuple(name for name, arm in ARMS.items() if arm.control)

CLIPPED = {"max-grad-norm": 10.0}
ARMS |= {
    f"{name}-clipped": Arm(f"{ARMS[name].title}, clipped", {**ARMS[name].config, **CLIPPED}, {}, False, name)
    for name in ("scaffold", "feddc")
}
REMEDIES = {"femnist": ("scaffold-clipped", "feddc-clipped")}

# FedCOME's step: the paper's, which has nothing against one that is too long, and what may be done about it.
ARMS |= {
    "fedcome-bounded": Arm(
        "FedCOME, update's norm at most 0.1", {**ARMS["fedcome"].config, "max-update-norm": 0.1}, {}
    ),
    "fedcome-clamped": Arm(
        "FedCOME, coordinates cut at 0.005", {**ARMS["fedcome"].config, "coordinate-bound": 0.005}, {}
    ),
}
STEPS = ("fedcome", "fedcome-adaptive", "fedcome-bounded", "fedcome-clamped")

# Table 5, from the authors' code.
SEARCH: dict[str, dict[str, tuple[float, ...]]] = {
    "fedprox": {"fedprox-mu": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 2.0)},
    "feddyn": {"feddyn-alpha": (0.01, 0.1, 1.0)},
    "feddc": {"feddc-alpha": (0.01, 0.1, 1.0)},
    "fedfv": {"fedfv-alpha": (0.0, 0.1, 0.5), "fedfv-tau": (0, 1, 3, 10)},
}
GRID_ROUNDS = 50
GRID_DATASETS = ("mnist", "cifar10")


def chosen(dataset: str, arm: str) -> Config:
    """The arm's hyperparameters: what `grid` chose on this kind of images, else what its authors published."""
    arm = ARMS[arm].remedy_of or arm
    kept = json.loads(CHOICES.read_text()) if CHOICES.exists() else {}
    searched = "mnist" if dataset in ("mnist", "femnist") else "cifar10"
    published = OTHER_VALUES.get(dataset, {}).get(arm, ARMS[arm].published)
    return dict(kept.get(searched, {}).get(arm, published))
