"""The paper's claims, each with a number and a verdict from the kept runs; what has no run yet stays open."""

from collections.abc import Callable

from examples.paper.protocol import Scale
from examples.paper.reporting import claims_full, claims_partial
from examples.paper.reporting.evidence import Kept, Verdict
from examples.paper.reporting.tables import Table

CLAIMS: list[tuple[str, Callable[[Kept], Verdict]]] = [
    ("Full participation, full batch, small rate: every client's loss falls every round", claims_full.every_loss_falls),
    (
        "At 20 % the unselected clients' losses keep falling with consensus selection only",
        claims_partial.unselected_losses_fall,
    ),
    ("FedCOME is best or equal on each data set", claims_full.best_everywhere),
    ("FedCOME is among the three fastest to a fixed accuracy", claims_full.among_the_fastest),
    ("Its lead grows as clients hold fewer classes", claims_full.lead_grows),
    ("Its clients' accuracies are spread less than FedFV's", claims_full.narrower_spread),
    ("With consensus selection it is best at 10 to 40 % participation", claims_partial.best_when_partial),
    ("Consensus selection helps the other methods too", claims_partial.selection_helps_others),
    (
        "Consensus selection gains over random at 10 % (paper: +2.77 points on CIFAR-10)",
        claims_partial.gain_at_ten_percent,
    ),
    ("Results are flat in α, and in µ from 0.5 on", claims_partial.flat_in_alpha),
    ("No more bytes than FedAvg, and no state on clients", claims_full.no_more_bytes),
    ("Programs and selection stay cheap as M and N grow", claims_full.cheap_programs),
    (
        "It changes gradients less than FedFV, and leaves fewer conflicts than SCAFFOLD's correction",
        claims_full.changes_less,
    ),
    ("(ours) What is left of its lead at equal step length", claims_full.lead_at_equal_length),
]


def judge(scale: Scale) -> Table:
    """All fourteen claims."""
    rows = []
    for number, (claim, function) in enumerate(CLAIMS, start=1):
        found = function(Kept(scale))
        rows.append((str(number), claim, found.number, found.verdict))
    columns = ("", "claim", "measured", "verdict")
    return Table(f"claims-{scale.name}", f"The paper's claims, scale {scale.name}", columns, rows, prose=True)
