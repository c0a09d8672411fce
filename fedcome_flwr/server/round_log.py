"""What the server says of a round in the log: one line, and one for each thing that went wrong."""

from logging import getLogger

from ..core.round_report import RoundReport

_log = getLogger("flwr")


def log_round(report: RoundReport) -> None:
    """One line a round, and one for each client left out."""
    for key, reason in report.left_out.items():
        _log.warning("fedcome round %d: client %s left out: %s", report.round, key, reason)
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
