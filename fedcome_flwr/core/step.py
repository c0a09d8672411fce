"""The adaptive server step: the paper's promise that no loss rises, checked after the fact."""

from collections.abc import Mapping

import numpy as np

SMALLEST_STEP = 0.05
_TOLERATED_RISE = 0.1
_GROWTH = 1.1


def next_step(
    step: float, losses: Mapping[str, float], last: Mapping[str, float], weights: Mapping[str, float]
) -> float:
    r"""The server step for this round, after the clients reported the loss of the model that they received.

    The participants' weighted loss is compared with the same clients' own last reports. When it stands more than a
    tenth above them the step halves, but not below 1/20; else it grows by a tenth, up to 1. The direction is two to
    four times longer than the mean, and past the descent margin a full step can diverge; while every loss falls, as
    constraint (2) of the paper demands, the step stays 1 and this is the paper's method.

    Parameters
    ----------
    step
        The step of the round before, in (0, 1].
    losses
        This round's reports by client key; a loss that is not finite counts as a rise.
    last
        Each client's report of the last round in which it took part. Clients without one are not compared.
    weights
        Importance of each client.
    """
    compared = [key for key in losses if key in last]
    if not compared:
        return step
    now = sum(weights[key] * losses[key] for key in compared)
    before = sum(weights[key] * last[key] for key in compared)
    # Relative to the size of the loss, which may be negative, as a log-density's.
    if not np.isfinite(now) or now - before > _TOLERATED_RISE * abs(before):
        return max(SMALLEST_STEP, step / 2)
    return min(1.0, _GROWTH * step)
