"""The adaptive server step: the paper's promise that no loss rises, checked after the fact."""

import math
from collections.abc import Collection, Mapping

SMALLEST_STEP = 0.05
_TOLERATED_AT_ONCE = 0.02
_TOLERATED_RISE = 0.1
_GROWTH = 1.1


def next_step(
    step: float,
    losses: Mapping[str, float],
    last: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    just_trained: Collection[str] = (),
) -> float:
    r"""The server step for this round, after the clients reported the loss of the model that they received.

    Each participant's loss is compared with its own last report. When clients with more than half of the compared
    weight stand too far above theirs the step halves, but not below 1/20; else it grows by a tenth, up to 1. Too far is
    2 % for a client that took part in the round before: what its loss did since is that round's step alone, which the
    method promises not to hurt it. For others it is a tenth, since rounds without them may well have hurt them.

    The direction is two to four times longer than the mean, and past the descent margin a full step can diverge; while
    every loss falls, as constraint (2) of the paper demands, the step stays 1 and this is the paper's method. Counting
    clients, and not adding up their losses, leaves no say to fewer than half of them, whatever numbers they report.

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
    just_trained
        Keys of the clients whose last report is from the last round that changed the model.
    """
    compared = [key for key in losses if key in last]
    if not compared:
        return step
    tolerated = {key: _TOLERATED_AT_ONCE if key in just_trained else _TOLERATED_RISE for key in compared}
    risen = sum(weights[key] for key in compared if _rises(losses[key], last[key], tolerated[key]))
    if risen > sum(weights[key] for key in compared) / 2:
        return max(SMALLEST_STEP, step / 2)
    return min(1.0, _GROWTH * step)


def _rises(now: float, before: float, tolerated: float) -> bool:
    # Relative to the size of the loss, which may be negative, as a log-density's.
    return not math.isfinite(now) or now - before > tolerated * abs(before)
