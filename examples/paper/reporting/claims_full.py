"""The claims about training in which every client takes part, and about its cost."""

import json
from pathlib import Path

import numpy as np

from examples.paper.protocol import ARMS, DATASETS, METHODS
from examples.paper.reporting.evidence import (
    EQUAL,
    FAILS,
    HOLDS,
    NOTHING,
    Kept,
    Verdict,
    accuracy_of,
    mean_of,
    title_of,
    total,
    verdict,
    with_open,
)
from examples.paper.reporting.groups import TARGET_SHARE, client_spread, diverged, paired_interval, rounds_to

SPEED = Path(__file__).parents[3] / "benchmarks" / "results"
PROJECTED = ("fedcome", "fedfv")


def every_loss_falls(kept: Kept) -> Verdict:
    """Claim 1."""
    parts, outcomes = [], []
    for group in kept.groups("figure2", arm="fedcome"):
        other = kept.by_arm("figure2", dataset=group.first.dataset).get("fedavg")
        limits = [limit for r in group.records.values() for limit in r.column("smoothness_limit") if limit]
        against = f", FedAvg {total(other, 'rises'):,}" if other else ""
        parts.append(
            f"{title_of(group)}: {total(group, 'rises'):,} of {total(group, 'rises_of'):,} rose{against}; "
            f"losses must fall up to L = {min(limits):.2g}"
        )
        outcomes.append(total(group, "rises") == 0)
    return Verdict("; ".join(parts), verdict(outcomes)) if parts else NOTHING


def best_everywhere(kept: Kept) -> Verdict:
    """Claim 3."""
    parts, outcomes = [], []
    for dataset, arms in kept.complete("table1").items():
        ranked = sorted(METHODS, key=lambda arm: -accuracy_of(arms[arm]))
        place = ranked.index("fedcome") + 1
        parts.append(
            f"{DATASETS[dataset].title}: FedCOME {accuracy_of(arms['fedcome']):.3f}, place {place}; "
            f"first {ARMS[ranked[0]].title} {accuracy_of(arms[ranked[0]]):.3f}"
        )
        outcomes.append(accuracy_of(arms["fedcome"]) >= accuracy_of(arms[ranked[0]]) - EQUAL)
    return Verdict(with_open(parts, kept.complete("table1"), DATASETS), verdict(outcomes)) if parts else NOTHING


def among_the_fastest(kept: Kept) -> Verdict:
    """Claim 4."""
    parts, outcomes = [], []
    for dataset, arms in kept.complete("table1").items():
        needed: dict[str, float] = {}
        for arm in METHODS:
            counts = []
            for seed in arms[arm].records.keys() & arms["fedavg"].records.keys():
                wanted = TARGET_SHARE * arms["fedavg"].records[seed].final_accuracy
                counts.append(rounds_to(arms[arm].records[seed], wanted) or np.inf)
            needed[arm] = float(np.mean(counts)) if counts else np.inf
        ranked = sorted(METHODS, key=lambda arm: needed[arm])
        place = 1 + sum(count < needed["fedcome"] for count in needed.values())
        fastest = ", ".join(f"{ARMS[arm].title} {needed[arm]:.0f}" for arm in ranked[:3])
        parts.append(f"{DATASETS[dataset].title}: FedCOME {needed['fedcome']:.0f} rounds, place {place} ({fastest})")
        outcomes.append(place <= 3)
    return Verdict(with_open(parts, kept.complete("table1"), DATASETS), verdict(outcomes)) if parts else NOTHING


def lead_grows(kept: Kept) -> Verdict:
    """Claim 5."""
    leads = {}
    for classes in (2, 3, 4):
        arms = kept.by_arm("table2", classes=classes)
        others = [arms[arm] for arm in METHODS if arm != "fedcome" and arm in arms]
        if "fedcome" in arms and others:
            leads[classes] = accuracy_of(arms["fedcome"]) - max(map(accuracy_of, others))
    if len(leads) < 3:
        return NOTHING
    text = "lead over the best other: " + ", ".join(f"C = {classes}: {lead:+.3f}" for classes, lead in leads.items())
    return Verdict(text, HOLDS if leads[2] > leads[3] > leads[4] else FAILS)


def narrower_spread(kept: Kept) -> Verdict:
    """Claim 6."""
    parts, outcomes, done = [], [], []
    for dataset in DATASETS:
        arms = kept.by_arm("table1", dataset=dataset)
        if arms.keys() >= {"fedcome", "fedfv"}:
            ours, theirs = (mean_of(arms[arm], client_spread) for arm in ("fedcome", "fedfv"))
            parts.append(f"{DATASETS[dataset].title}: FedCOME {ours:.3f}, FedFV {theirs:.3f}")
            outcomes.append(ours < theirs)
            done.append(dataset)
    return Verdict(with_open(parts, done, DATASETS), verdict(outcomes)) if parts else NOTHING


def no_more_bytes(kept: Kept) -> Verdict:
    """Claim 11."""
    parts, outcomes = [], []
    for dataset in DATASETS:
        arms = kept.by_arm("table1", dataset=dataset)
        if not arms.keys() >= {"fedavg", "fedcome"}:
            continue
        sizes = {
            arm: mean_of(group, lambda r: float(np.mean([x["bytes_up"] + x["bytes_down"] for x in r.rounds])))
            for arm, group in arms.items()
            if arm in METHODS
        }
        ratio = {ARMS[arm].title: size / sizes["fedavg"] for arm, size in sizes.items()}
        more = ", ".join(f"{title} {value:.2f}" for title, value in ratio.items() if value > 1.001)
        parts.append(
            f"{DATASETS[dataset].title}: FedCOME {ratio['FedCOME']:.2f} × FedAvg's bytes, no client state"
            + (f" (more: {more})" if more else "")
        )
        outcomes.append(ratio["FedCOME"] <= 1.001)
    return Verdict("; ".join(parts), verdict(outcomes)) if parts else NOTHING


def cheap_programs(kept: Kept) -> Verdict:
    """Claim 12, by the speed benchmarks, which take the newest line of each size."""
    newest = [json.loads(line) for line in (SPEED / "consensus.jsonl").read_text().splitlines()][-1]
    ordinary = {int(count): cell for count, cell in newest["ordinary"].items()}
    programs = {count: cell["ours"]["seconds"] for count, cell in ordinary.items() if cell["matrix"] == "mnist"}
    lines = [json.loads(line) for line in (SPEED / "selection.jsonl").read_text().splitlines()]
    chosen = {line["population"]: sum(line["seconds"].values()) for line in lines if line["clients"] == 100}
    parts = [
        "programs of a round: " + ", ".join(f"M = {m} {1000 * t:.0f} ms" for m, t in sorted(programs.items())),
        "selection of 100: " + ", ".join(f"N = {n:,} {1000 * t:.0f} ms" for n, t in sorted(chosen.items())),
    ]
    return Verdict("; ".join(parts), HOLDS)


def changes_less(kept: Kept) -> Verdict:
    """Claim 13."""
    parts, outcomes = [], []
    for dataset in DATASETS:
        arms = kept.by_arm("table1", dataset=dataset)
        if not arms.keys() >= {"fedcome", "fedfv", "scaffold"}:
            continue
        change = {arm: mean_of(arms[arm], lambda r: float(np.mean(r.column("relative_change")))) for arm in PROJECTED}
        first = {arm: mean_of(arms[arm], lambda r: r.rounds[0]["relative_change"]) for arm in PROJECTED}
        ours = mean_of(arms["fedcome"], lambda r: float(np.mean(r.column("remaining_conflicts"))))
        soft = mean_of(arms["scaffold"], lambda r: float(np.mean(r.column("conflicts"))))
        stable = not any(map(diverged, arms["scaffold"].records.values()))
        parts.append(
            f"{DATASETS[dataset].title}: change FedCOME {change['fedcome']:.2f}, FedFV {change['fedfv']:.2f} (round 1, "
            f"same ones: {first['fedcome']:.2f}, {first['fedfv']:.2f}); pairs in conflict FedCOME {ours:.3f}, "
            + (f"SCAFFOLD {soft:.3f}" if stable else "SCAFFOLD diverged")
        )
        outcomes += [change["fedcome"] < change["fedfv"], *([ours < soft] if stable else ())]
    return Verdict("; ".join(parts), verdict(outcomes)) if parts else NOTHING


def lead_at_equal_length(kept: Kept) -> Verdict:
    """Claim 14: not the paper's, but what its comparison leaves out."""
    parts = []
    for dataset in DATASETS:
        arms = kept.by_arm("table1", dataset=dataset)
        if arms.keys() >= {"fedavg", "fedcome", "fedcome-at-mean-norm", "fedavg-at-fedcome-norm"}:
            full, short, long = (
                paired_interval(arms[one], arms[other])[1]
                for one, other in (
                    ("fedcome", "fedavg"),
                    ("fedcome-at-mean-norm", "fedavg"),
                    ("fedcome", "fedavg-at-fedcome-norm"),
                )
            )
            parts.append(
                f"{DATASETS[dataset].title}: lead over FedAvg {full:+.3f}; at FedAvg's length {short:+.3f}, at "
                f"FedCOME's {long:+.3f}"
            )
    return Verdict("; ".join(parts), "measured") if parts else NOTHING
