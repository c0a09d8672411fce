"""What the server says of a round in the log: one line, and one for each thing that went wrong."""

from logging import getLogger

from ..core.local_rule import DISTANCE_MOVED
from ..core.methods import Method
from ..core.round_report import RoundReport

_log = getLogger("flwr")
_REMARKABLE_WEIGHT = 0.5  # of all: such a client's word is the mean
_REMARKABLE_VETO = 0.5  # of all veto; without hostile clients the largest share measured was 0.23, of 10 clients


def warn_of_silent_pull(method: Method, report: RoundReport) -> bool:
    """Warn, and say so, when clients do not show that they pull: FedProx would be FedAvg, and nobody would notice."""
    silent = [key for key, metrics in report.client_metrics.items() if DISTANCE_MOVED not in metrics]
    if not method.rule.pull or not silent:
        return False
    _log.warning(
        "fedcome round %d: %d clients, such as %s, report no %r: make sure that they add the proximal term, "
        "rule-pull * (w - w0) (also sent as proximal-mu), as the clients of fedcome_flwr.client do",
        report.round,
        len(silent),
        silent[0],
        DISTANCE_MOVED,
    )
    return True


def log_round(report: RoundReport) -> None:
    """One line a round, and one for each client left out, for memories that were set back, and for a large veto."""
    if report.memory_strayed:
        _log.warning(
            "fedcome round %d: the memories of clients %s are not those that the server has counted, so that all start "
            "again at 0 (epoch %d); with state_dir a client's memory survives its restart",
            report.round,
            ", ".join(report.memory_strayed),
            report.memory_epoch,
        )
    for key, reason in report.left_out.items():
        _log.warning("fedcome round %d: client %s left out: %s", report.round, key, reason)
    if report.stray_replies:
        _log.warning(
            "fedcome round %d: %d replies that nobody waited for: from nodes that were not asked, of another round, or "
            "Flower's word that a node vanished",
            report.round,
            report.stray_replies,
        )
    if report.unchanged is not None:
        _log.error(
            "fedcome round %d: the model is unchanged: %s%s",
            report.round,
            report.unchanged,
            f"; missing: {', '.join(report.missing)}" if report.missing else "",
        )
        return
    if report.certified is False:
        _log.warning(
            "fedcome round %d: the consensus programs' solution (%s) is not certified, largest residual %.1e",
            report.round,
            report.solver,
            report.residual,
        )
    _log_weight(report)
    _log_veto(report)
    _log.info(
        "fedcome round %d: %s over %d clients (%d left out, %d missing), %.0f %% of pairs conflict, "
        "hurt by the mean %d, by the direction %d, norm ratio %.2f, step %.3g, %.3f s",
        report.round,
        report.method,
        len(report.clients),
        len(report.left_out),
        len(report.missing),
        100 * report.conflicting_pairs,
        report.hurt_by_mean,
        report.hurt_by_direction,
        report.norm_ratio,
        report.server_step,
        sum(report.seconds.values()),
    )


def _log_weight(report: RoundReport) -> None:
    """Name the client whose number of examples makes the mean its own."""
    if len(report.clients) > 2 and max(report.client_weights, default=0.0) > _REMARKABLE_WEIGHT:
        largest = report.client_weights.index(max(report.client_weights))
        _log.warning(
            "fedcome round %d: client %s has %.0f %% of the weight by its number of examples; if that is not meant, "
            'client_weights="uniform" weighs all clients alike',
            report.round,
            report.clients[largest],
            100 * report.client_weights[largest],
        )


def _log_veto(report: RoundReport) -> None:
    """Name the client that stands in the way: with a warning where it stops the training."""
    if (largest := report.largest_veto) is None:
        return
    client, share = largest
    if report.vanishes:
        _log.warning(
            "fedcome round %d: the direction nearly vanishes, to %.1e of the mean's length; client %s holds the "
            "largest veto, %.0f %% of all. If this goes on, fedcome(influence_limit=...), or a smaller one, bounds "
            "what a client can block",
            report.round,
            report.norm_ratio,
            client,
            100 * share,
        )
    elif share > _REMARKABLE_VETO and len(report.clients) > 2:  # of two, one always has half
        _log.info("fedcome round %d: client %s holds %.0f %% of all veto", report.round, client, 100 * share)
