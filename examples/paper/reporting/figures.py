"""The paper's figures, as PNG and SVG, one look for all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.paper.protocol import ARMS, DATASETS, Scale
from examples.paper.reporting.groups import Group, by_dataset, diverged
from examples.paper.runs import Choice, runs_of
from fedcome_flwr.report.plots import LOOK

# Okabe and Ito's colours, which colour-blind readers can tell apart; controls are dashed.
COLOURS = {
    "fedavg": "#000000",
    "fedprox": "#999999",
    "scaffold": "#0072B2",
    "feddyn": "#009E73",
    "fedfv": "#56B4E9",
    "feddc": "#CC79A7",
    "fedcome": "#D55E00",
    "fedcome-adaptive": "#D55E00",
    "fedcome-at-mean-norm": "#D55E00",
    "fedavg-at-fedcome-norm": "#000000",
    "scaffold-clipped": "#0072B2",
    "feddc-clipped": "#CC79A7",
}
STYLES = {"fedcome-adaptive": "-.", "fedcome-at-mean-norm": "--", "fedavg-at-fedcome-norm": "--"}
STYLES |= {"scaffold-clipped": "--", "feddc-clipped": "--"}


def draw(target: str, scale: Scale, choice: Choice, folder: Path) -> list[Path]:
    """Draw a figure of each data set that has a kept run; panels without any say so."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for dataset, groups in by_dataset(runs_of(target, scale, choice)).items():
        if not any(group.records for group in groups):
            continue
        with plt.rc_context(LOOK | {"figure.constrained_layout.use": False}):
            figure = _figure(plt, target, groups)
            for kind in ("png", "svg"):
                paths.append(folder / f"{target}-{dataset}-{scale.name}.{kind}")
                figure.savefig(paths[-1], metadata={"Date": None} if kind == "svg" else {"Software": None})
            plt.close(figure)
    return paths


def _figure(plt: Any, target: str, groups: Sequence[Group]) -> Any:
    panels: dict[str, list[Group]] = {}
    for group in groups:
        panels.setdefault(_panel(target, group), []).append(group)
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels) + 1, 3.8), squeeze=False, sharey=True)
    for axis, (title, members) in zip(axes.flat, panels.items(), strict=True):
        axis.set_title(title)
        shown = [group for group in members if group.records]
        if shown:
            {"figure1": _curves, "figure4": _distributions}.get(target, _losses)(axis, shown)
        else:
            axis.text(0.5, 0.5, "open", ha="center", va="center", transform=axis.transAxes)
            axis.set_axis_off()
    figure.tight_layout()
    return figure


def _panel(target: str, group: Group) -> str:
    title = DATASETS[group.first.dataset].title
    if target == "figure2":
        return f"{title}, {ARMS[group.first.arm].title}"
    if target == "figure3":
        return f"{title}, {group.first.selection} selection"
    return title


def _curves(axis: Any, groups: Sequence[Group]) -> None:
    """Accuracy by round, mean over seeds, smoothed over five rounds."""
    for group in groups:
        curves = np.array([record.column("accuracy") for record in group.records.values()])
        mean = np.convolve(curves.mean(axis=0), np.full(5, 0.2), mode="valid")
        arm = group.first.arm
        seeds = "" if len(group.records) == 1 else f" ({len(group.records)} seeds)"
        label = ARMS[arm].title + (", diverged" if any(map(diverged, group.records.values())) else seeds)
        width = 2.4 if arm == "fedavg" else 1.2  # FedProx often lies on it
        axis.plot(np.arange(5, len(mean) + 5), mean, STYLES.get(arm, "-"), color=COLOURS[arm], label=label, lw=width)
    top = max(record.final_accuracy for group in groups for record in group.records.values())
    axis.set_ylim(0.5 * top, 1.03 * top)
    axis.set(xlabel="server round", ylabel="mean client accuracy")
    axis.legend(fontsize=7, ncols=2)


def _losses(axis: Any, groups: Sequence[Group]) -> None:
    """Every client's own loss by round; red where it rose."""
    group = groups[0]
    record = next(iter(group.records.values()))
    keys = sorted(record.rounds[-1]["client_losses"])
    losses = np.array([[line["client_losses"][key] for key in keys] for line in record.rounds])
    rounds = np.array(record.column("round"))
    axis.plot(rounds, losses, color="#0072B2", lw=0.5, alpha=0.5)
    rose = np.diff(losses, axis=0) > 1e-6
    at, who = np.nonzero(rose)
    axis.plot(rounds[at + 1], losses[at + 1, who], ".", color="#D55E00", ms=2.5)
    axis.set(xlabel="server round", ylabel="loss of each client")
    counted, among = (sum(record.column(name)) for name in ("rises", "rises_of"))  # before losses were rounded
    axis.set_title(f"{axis.get_title()}: {counted:,} of {among:,} rose")


def _distributions(axis: Any, groups: Sequence[Group]) -> None:
    """How the clients' final accuracies are distributed."""
    every = [_final_accuracies(group) for group in groups]
    bins = np.linspace(min(map(np.min, every)), max(map(np.max, every)), 16)
    labels = [
        f"{ARMS[group.first.arm].title}: mean {values.mean():.3f}, deviation {values.std():.3f}"
        for group, values in zip(groups, every, strict=True)
    ]
    axis.hist(every, bins, color=[COLOURS[group.first.arm] for group in groups], label=labels)
    axis.set(xlabel="accuracy of a client, mean of the last kept rounds", ylabel="clients")
    axis.legend(fontsize=7)


def _final_accuracies(group: Group) -> Any:
    kept = []
    for record in group.records.values():
        lines = [line["client_accuracies"] for line in record.rounds if "client_accuracies" in line]
        keys = sorted(lines[-1])
        kept.append(np.mean([[line[key] for key in keys] for line in lines[-3:]], axis=0))
    return np.mean(kept, axis=0)
