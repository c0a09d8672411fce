"""The last programs of a round: an active-set method that cannot cycle."""

import numpy as np

from ._free_sets import FreeSystems
from ._programs import ConsensusPrograms, FloatArray, IndexArray

_MOVES = 4  # per client; nearly always a tenth of it is enough


def pivot(
    programs: ConsensusPrograms, systems: FreeSystems, rows: IndexArray, duals: FloatArray, solved: float
) -> FloatArray:
    """Solve programs by Lawson and Hanson's method, with an upper bound, from feasible ``duals``, ``[n, m]``.

    In each program one index at a time enters or leaves the free set and every move lowers the objective, so
    no free set comes twice, which primal-dual steps alone cannot promise near singular matrices. The programs
    move side by side; one that is not solved after 4 m moves is returned as it is.
    """
    limit = programs.limit
    result = duals.copy()
    still = np.arange(len(rows))
    free = (duals > 0.0) & (duals < limit)
    refused = np.zeros_like(free)
    entered = np.zeros_like(free)  # at most one index a row
    gradient = programs.products(rows, duals)
    for _ in range(_MOVES * duals.shape[1]):
        step = -systems.solve(free, gradient)
        # A gradient that was rounding noise: moving that index would not descend.
        noise = entered & (step * gradient >= 0.0)
        free, refused = free & ~noise, refused | noise
        step[noise.any(axis=1)] = 0.0
        room = np.where(step < 0.0, -duals, limit - duals)
        reach = np.divide(room, step, out=np.full_like(step, np.inf), where=step != 0.0)
        fraction = np.minimum(1.0, reach.min(axis=1, keepdims=True))
        refused &= ~((fraction > 0.0) & step.any(axis=1, keepdims=True))
        blocking = (fraction < 1.0) & (reach <= fraction)
        duals = np.clip(duals + fraction * step, 0.0, limit)
        duals[blocking] = np.where(step < 0.0, 0.0, limit)[blocking]
        free &= ~blocking
        gradient = programs.products(rows[still], duals)
        settled = ~blocking.any(axis=1) & (np.abs(np.where(free, gradient, 0.0)).max(axis=1) <= solved)
        gain = np.where(free | refused, 0.0, np.where(duals >= limit, gradient, -gradient))
        best = gain.argmax(axis=1)
        wanted = gain[np.arange(len(still)), best] > solved
        entered = np.zeros_like(free)
        entered[settled & wanted, best[settled & wanted]] = True
        free |= entered
        result[still] = duals
        left = ~settled | wanted
        still, duals, free, refused = still[left], duals[left], free[left], refused[left]
        entered, gradient = entered[left], gradient[left]
        if still.size == 0:
            break
    return result
