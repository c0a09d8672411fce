"""Plots of runs: what the model learnt, what each client went through, what the consensus did."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.similarity import SimilarityTable
from .run_data import RunData, rises

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ROSE = "#D55E00"
LOOK: dict[Any, Any] = {
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.hashsalt": "fedcome",  # the same bytes in every run
}
_PANEL = (5.2, 3.6)  # inches
_IN_A_ROW = 3
_NAMED = 60  # clients whose keys still fit below an axis


class NothingToPlotError(ValueError):
    """The runs do not hold what a plot shows; the text says what is missing."""


def draw_plots(
    runs: Sequence[RunData],
    folder: Path,
    *,
    kind: str = "png",
    metric: str = "accuracy",
    table: SimilarityTable | None = None,
) -> tuple[list[Path], list[str]]:
    """Draw every plot that the runs have the numbers for.

    Parameters
    ----------
    runs
        One or several, compared in the same axes where lines allow it, else in panels side by side.
    folder
        Where the files go; it is made if it is not there.
    kind
        ``"png"`` or ``"svg"``.
    metric
        What of the clients' evaluations is shown beside the loss.
    table
        The first run's similarities.

    Returns
    -------
    The files, and for each plot that could not be drawn the reason.
    """
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    plots: dict[str, Callable[[Any], Any]] = {
        "learning": lambda plt: _learning(plt, runs, metric),
        "losses": lambda plt: _losses(plt, runs),
        "conflicts": lambda plt: _conflicts(plt, runs),
        "step": lambda plt: _step(plt, runs),
        "selection": lambda plt: _selection(plt, runs),
        "similarity": lambda plt: _similarity(plt, table),
    }
    paths, missing = [], []
    for name, draw in plots.items():
        with plt.rc_context(LOOK):
            try:
                figure = draw(plt)
            except NothingToPlotError as error:
                missing.append(f"{name}: {error}")
            else:
                paths.append(folder / f"{name}.{kind}")
                figure.savefig(paths[-1], metadata={"Date": None} if kind == "svg" else {"Software": None})
            plt.close("all")
    return paths, missing


def _learning(plt: Any, runs: Sequence[RunData], metric: str) -> Any:
    """The metric and the loss, the mean over clients and the band of four clients in five."""
    figure, axes = _panels(plt, 2)
    drawn = False
    for axis, name in zip(axes, (metric, "loss"), strict=True):
        for run, colour in zip(runs, _colours(runs), strict=True):
            mean, low, high = run.evaluated(name).T
            if np.isnan(mean).all():
                mean = run.reported(name)
            known = ~np.isnan(mean)
            drawn = drawn or bool(known.any())
            axis.plot(run.numbers[known], mean[known], color=colour, label=run.name)
            axis.fill_between(run.numbers[known], low[known], high[known], color=colour, alpha=0.15, lw=0)
        axis.set(title=f"{name}: mean over clients; band: four in five", xlabel="server round")
    if not drawn:
        raise NothingToPlotError(f"expected {metric!r} or 'loss' among what clients or server evaluated, found neither")
    axes[0].legend()
    return figure


def _losses(plt: Any, runs: Sequence[RunData]) -> Any:
    """Every client's own loss of the models that it received; a dot where it stands above its last one."""
    figure, axes = _panels(plt, len(runs), sharey=True)
    if all(np.isnan(run.losses()[1]).all() for run in runs):
        raise NothingToPlotError("expected the metric 'train-loss' in the clients' replies, found none")
    for axis, run in zip(axes, runs, strict=True):
        keys, losses = run.losses()
        for column in losses.T:  # a line from report to report, over the rounds in which the client was away
            known = ~np.isnan(column)
            axis.plot(run.numbers[known], column[known], color=COLOURS[0], lw=0.6, alpha=0.5)
        rose = rises(losses)
        at, who = np.nonzero(rose)
        axis.plot(run.numbers[at], losses[at, who], ".", color=ROSE, ms=2.5)
        compared = int((~np.isnan(losses)).sum() - len(keys))
        axis.set(title=f"{run.name}: own loss rose {len(at):,} of {max(0, compared):,} times", xlabel="server round")
    axes[0].set_ylabel("loss of each client")
    return figure


def _conflicts(plt: Any, runs: Sequence[RunData]) -> Any:
    """How many clients disagree, and how many of them the mean and the update would hurt."""
    figure, (pairs, hurt) = _panels(plt, 2)
    for run, colour in zip(runs, _colours(runs), strict=True):
        clients = np.array([max(1, len(report["clients"])) for report in run.rounds])
        pairs.plot(run.numbers, 100 * run.column("conflicting_pairs"), "--", color=colour, label=f"{run.name}: before")
        after = run.column("remaining_conflicts")
        if not np.isnan(after).all():
            pairs.plot(run.numbers, 100 * after, color=colour, label=f"{run.name}: after")
        by_mean, by_update = (100 * run.column(f"hurt_by_{what}") / clients for what in ("mean", "direction"))
        if not np.array_equal(by_mean, by_update):
            hurt.plot(run.numbers, by_mean, "--", color=colour, label=f"{run.name}: by the mean")
        hurt.plot(run.numbers, by_update, color=colour, label=f"{run.name}: by the update")
    pairs.set(title="pairs of clients in conflict, %", xlabel="server round", ylim=(-2, 102))
    hurt.set(title="clients hurt, to first order, %", xlabel="server round")
    hurt.set_ylim(-2, max(10.0, 1.05 * hurt.get_ylim()[1]))
    for axis in (pairs, hurt):
        axis.legend(fontsize=7)
    return figure


def _step(plt: Any, runs: Sequence[RunData]) -> Any:
    """Length of the update, and how rough losses may be before one of them can rise."""
    figure, (ratio, step, margin) = _panels(plt, 3)
    for run, colour in zip(runs, _colours(runs), strict=True):
        ratio.plot(run.numbers, run.column("norm_ratio"), color=colour, label=run.name)
        step.plot(run.numbers, run.column("server_step"), color=colour, label=run.name)
        limit = run.column("smoothness_limit")
        margin.plot(run.numbers, np.where(limit > 0, limit, np.nan), color=colour, label=run.name)
    ratio.axhline(1, color="black", lw=0.6)
    ratio.set(title="norm of the direction / norm of the mean", xlabel="server round")
    step.set(title="server step", xlabel="server round", ylim=(0, None))
    margin.set(title="descent margin: losses fall if smoother than this", xlabel="server round", yscale="log")
    ratio.legend()
    return figure


def _selection(plt: Any, runs: Sequence[RunData]) -> Any:
    """Who was asked to train how often."""
    figure, axes = _panels(plt, len(runs), sharey=True)
    if not any(run.chosen()[0] for run in runs):
        raise NothingToPlotError("expected rounds in which clients were asked to train, found none")
    for axis, run in zip(axes, runs, strict=True):
        keys, (times, annealed) = run.chosen()
        places = np.arange(len(keys))
        axis.bar(places, times, 1.0, color=COLOURS[5], label="at random")
        if annealed.any():
            axis.bar(places, annealed, 1.0, color=COLOURS[0], label="among the least similar")
            axis.legend()
        axis.grid(axis="x", visible=False)
        axis.set(title=f"{run.name}: rounds in which each client trained", xlabel=f"{len(keys)} clients, most first")
        axis.set_xticks(*((places, keys) if len(keys) <= _NAMED // 2 else ([],)), rotation=90, fontsize=6)
    return figure


def _similarity(plt: Any, table: SimilarityTable | None) -> Any:
    """The server's similarity table, clients that resemble each other side by side."""
    if table is None or not table.keys:
        raise NothingToPlotError("give the run's checkpoint with --checkpoint, it holds the similarity table")
    keys = by_clusters(table)
    figure, (axis,) = _panels(plt, 1, size=(6.2, 5.4))
    image = axis.imshow(table.among(keys), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=axis, label="similarity (0: never met, or at right angles)")
    axis.grid(visible=False)
    axis.set(title=f"similarity of {len(keys)} clients after {table.observations} rounds, by clusters")
    named = len(keys) <= _NAMED
    for set_ticks, rotation in ((axis.set_xticks, 90), (axis.set_yticks, 0)):
        set_ticks(*((range(len(keys)), keys) if named else ([],)), rotation=rotation, fontsize=6)
    return figure


def by_clusters(table: SimilarityTable) -> list[str]:
    """The table's clients in the order of a hierarchical clustering (average linkage, distance 1 − similarity)."""
    keys = sorted(table.keys)
    if len(keys) < 3:
        return keys
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    distances: NDArray[np.float64] = 1.0 - table.among(keys)
    np.fill_diagonal(distances, 0.0)
    condensed = squareform(distances, checks=False)
    tree = linkage(condensed, "average")
    if len(keys) <= 500:  # cubic
        tree = optimal_leaf_ordering(tree, condensed)
    return [keys[leaf] for leaf in leaves_list(tree)]


def _panels(plt: Any, count: int, *, sharey: bool = False, size: tuple[float, float] = _PANEL) -> tuple[Any, Any]:
    columns = min(count, _IN_A_ROW)
    rows = math.ceil(count / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False, sharey=sharey
    )
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, axes.flat[:count]


def _colours(runs: Sequence[RunData]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(runs))]
