r"""Our exact solver for all programs at once: splitting finds the active sets, Newton steps finish them.

1. **Splitting** treats all programs together: one product of two matrices per step, since the programs share
   their Hessian. It gives a near solution and, with it, a guess of the *free set* of each program: the duals
   strictly between their bounds. Where clients outnumber the dimensions it is often the solution itself.
2. **Newton steps** (primal-dual active set) solve the optimality conditions on the guessed free sets and
   correct the guess from the signs. A program whose conditions hold is finished; usually all are, after two
   to five steps. They need a good guess, so a few programs are tried before the others.
3. Programs still open go back to 1 with a smaller penalty, which finds directions with small eigenvalues that
   the stage before barely moved along. What the last stage leaves, single moves finish (``_pivoting``).
"""

import numpy as np

from ._free_sets import FreeSystems
from ._pivoting import pivot
from ._programs import ConsensusPrograms, FloatArray, IndexArray
from ._splitting import split

# Penalty and number of steps. The first stage settles measured federations of 100 to 1000 clients, the second
# those with about as many clients as dimensions, the next ones condition numbers up to 1e12, and the last ones
# camps of clients that are nearly opposed.
_STAGES = ((0.6, 30), (0.05, 60), (5e-3, 60), (5e-4, 60), (5e-5, 60), (1e-6, 60), (1e-8, 30), (1e-10, 30))
_MOST_STEPS = 10  # times the stage's number: few programs are cheap, so they get more steps
_TRIED = 6  # programs that are tried before the others
_TRIAL_STEPS = 5
_NEWTON_STEPS = 10  # a program that needs more has nearly always begun to cycle
_SOLVED = 1e-11  # residual at which a program is finished: well below the certificate of 1e-9


def solve_newton(programs: ConsensusPrograms) -> FloatArray:
    """Return the normalised duals of all programs, shape ``[m, m]``, row i for client i."""
    size = len(programs.cosines)
    systems = FreeSystems.of(programs.cosines)
    solved = max(_SOLVED, systems.indefinite)
    duals = np.zeros((size, size))
    rows = np.arange(size)
    guess = np.zeros((size, size))
    previous = _STAGES[0][0]
    for penalty, least in _STAGES:
        if penalty <= systems.indefinite:
            break
        steps = min(_MOST_STEPS * least, least * size // len(rows))
        clipped = np.clip(guess, 0.0, programs.limit)
        # What lies past the bounds is the product over the penalty.
        guess = split(programs, rows, clipped + (guess - clipped) * (previous / penalty), penalty, steps)
        previous = penalty
        duals[rows] = np.clip(guess, 0.0, programs.limit)
        is_open = programs.residuals(rows, duals[rows]) > solved
        rows, guess = rows[is_open], guess[is_open]
        tried = np.arange(0, len(rows), max(1, len(rows) // _TRIED))
        _, errors = _newton(programs, systems, rows[tried], duals[rows[tried]], guess[tried], _TRIAL_STEPS, solved)
        if rows.size and np.mean(errors <= solved) >= 0.5:
            found, errors = _newton(programs, systems, rows, duals[rows], guess, _NEWTON_STEPS, solved)
            duals[rows[errors <= solved]] = found[errors <= solved]
            rows, guess = rows[errors > solved], guess[errors > solved]
        if rows.size == 0:
            return duals
    duals[rows] = pivot(programs, systems, rows, duals[rows], solved)
    return duals


def _newton(
    programs: ConsensusPrograms,
    systems: FreeSystems,
    rows: IndexArray,
    duals: FloatArray,
    moved: FloatArray,
    steps: int,
    solved: float,
) -> tuple[FloatArray, FloatArray]:
    r"""Solve the optimality conditions on guessed free sets, a few times.

    ``moved`` is the guess: an index is free where it lies strictly between the bounds, and at the bound that
    it passes otherwise. The next guess is :math:`\hat v - w`. Returns the last duals, and their residuals.
    """
    limit = programs.limit
    found = duals.copy()
    residuals = np.full(len(rows), np.inf)
    still = np.arange(len(rows))
    for _ in range(steps):
        free = (moved > 0.0) & (moved < limit)
        duals = np.where(free, duals, np.where(moved >= limit, limit, 0.0))
        duals -= systems.solve(free, programs.products(rows[still], duals))
        moved = duals - programs.products(rows[still], duals)
        clipped = np.clip(moved, 0.0, limit)
        found[still], residuals[still] = np.clip(duals, 0.0, limit), np.abs(duals - clipped).max(axis=1)
        unsolved = residuals[still] > solved
        still, duals, moved = still[unsolved], duals[unsolved], moved[unsolved]
        if still.size == 0:
            break
    return found, residuals
