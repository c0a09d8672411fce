"""The claims about training in which some of the clients take part in each round."""

import numpy as np

from examples.paper.protocol import ARMS, DATASETS, METHODS
from examples.paper.reporting.evidence import EQUAL, NOTHING, Kept, Verdict, accuracy_of, title_of, total, verdict
from examples.paper.reporting.groups import Group, paired_interval


def unselected_losses_fall(kept: Kept) -> Verdict:
    """Claim 2."""
    parts, outcomes = [], []
    for dataset in DATASETS:
        cells = {group.first.selection: group for group in kept.groups("figure3", dataset=dataset)}
        if cells.keys() >= {"uniform", "consensus"}:
            rises = {name: total(group, "rises_unselected") for name, group in cells.items()}
            first = cells["uniform"].first
            possible = round((1 - first.participation) * first.clients) * (first.rounds - 1)
            parts.append(
                f"{DATASETS[dataset].title}: losses of unselected clients rose {rises['consensus']:,} of {possible:,} "
                f"times with consensus selection, {rises['uniform']:,} with uniform"
            )
            outcomes.append(rises["consensus"] < 0.5 * rises["uniform"])
    return Verdict("; ".join(parts), verdict(outcomes)) if parts else NOTHING


def best_when_partial(kept: Kept) -> Verdict:
    """Claim 7."""
    parts, outcomes = [], []
    for dataset in kept.scale.partial:
        for share in kept.scale.shares:
            cells = kept.groups("table3", dataset=dataset, participation=share)
            methods = {group.first.arm for group in cells if group.first.selection == "consensus"}
            if not set(METHODS) <= methods:
                continue
            ours = next(g for g in cells if (g.first.arm, g.first.selection) == ("fedcome", "consensus"))
            best = max((g for g in cells if g.first.arm in METHODS), key=accuracy_of)
            parts.append(
                f"{DATASETS[dataset].title} {share:.0%}: FedCOME {accuracy_of(ours):.3f}, best "
                f"{ARMS[best.first.arm].title} ({best.first.selection}) {accuracy_of(best):.3f}"
            )
            outcomes.append(accuracy_of(ours) >= accuracy_of(best) - EQUAL)
    return Verdict("; ".join(parts), verdict(outcomes)) if parts else NOTHING


def _gains(kept: Kept, share: float | None = None) -> list[tuple[Group, tuple[float, float, float]]]:
    found = []
    for dataset in kept.scale.partial:
        for part in kept.scale.shares if share is None else (share,):
            cells = kept.groups("table3", dataset=dataset, participation=part)
            pairs = {(group.first.arm, group.first.selection): group for group in cells}
            for arm in METHODS:
                if (arm, "uniform") in pairs and (arm, "consensus") in pairs:
                    consensus = pairs[arm, "consensus"]
                    found.append((consensus, paired_interval(consensus, pairs[arm, "uniform"])))
    return found


def selection_helps_others(kept: Kept) -> Verdict:
    """Claim 8."""
    gains = [(group, mean) for group, (_, mean, _) in _gains(kept) if group.first.arm != "fedcome"]
    if not gains:
        return NOTHING
    outcomes = [mean > 0 for _, mean in gains]
    mean = float(np.mean([gain for _, gain in gains]))
    return Verdict(f"a gain in {sum(outcomes)} of {len(outcomes)} cells, {mean:+.3f} on average", verdict(outcomes))


def gain_at_ten_percent(kept: Kept) -> Verdict:
    """Claim 9."""
    gains = [(group, interval) for group, interval in _gains(kept, 0.1) if group.first.arm == "fedcome"]
    if not gains:
        return NOTHING
    parts = []
    for group, (low, mean, high) in gains:
        interval = "" if np.isnan(low) else f" [{100 * low:+.2f}, {100 * high:+.2f}]"
        parts.append(f"{title_of(group)}: {100 * mean:+.2f} points{interval}")
    # With an interval, only a gain that it excludes 0 from counts.
    outcomes = [(mean if np.isnan(low) else low) > 0 for _, (low, mean, _) in gains]
    return Verdict("; ".join(parts), verdict(outcomes))


def flat_in_alpha(kept: Kept) -> Verdict:
    """Claim 10."""
    parts, outcomes = [], []
    for dataset in kept.scale.partial:
        groups = kept.groups("table4", dataset=dataset)
        upper = [g for g in groups if float(g.first.config["selection-mu"]) >= 0.5]
        planned = len(kept.scale.grid4) * sum(mu >= 0.5 for mu in kept.scale.grid4)
        if len(upper) < planned:
            continue
        values = [accuracy_of(group) for group in upper]
        lower = [accuracy_of(group) for group in groups if group not in upper]
        rest = f"; below 0.5: {min(lower):.3f} to {max(lower):.3f}" if lower else ""
        parts.append(f"{DATASETS[dataset].title}, µ ≥ 0.5: {min(values):.3f} to {max(values):.3f}{rest}")
        outcomes.append(max(values) - min(values) <= 0.02)
    return Verdict("; ".join(parts), verdict(outcomes)) if parts else NOTHING
