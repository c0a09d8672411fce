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

from dataclasses import replace

import numpy as np

from ._free_sets import FreeSystems
from ._pivoting import pivot
from ._programs import ConsensusPrograms, FloatArray, IndexArray
from ._splitting import split

# Penalty and number of steps. The first stage settles measured federations of 100 to 1000 clients, the next two
# those with about as many clients as dimensions, 1e-4 condition numbers up to 1e12, and the last ones camps of
# clients that are nearly opposed.
_STAGES = ((0.6, 30), (0.05, 60), (5e-3, 200), (1e-4, 100), (1e-6, 60), (1e-8, 30), (1e-10, 30))
_MOST_STEPS = 10  # times the stage's number: few programs are cheap, so they get more steps
_TRIED = 6  # programs that are tried before the others
_TRIAL_STEPS = 5
_NEWTON_STEPS = 10  # a program that needs more has nearly always begun to cycle
_SOLVED = 1e-11  # residual at which a program is finished: well below the certificate of 1e-9


def solve_newton(programs: ConsensusPrograms) -> FloatArray:
    """Return the normalised duals of all programs, shape ``[m, m]``, row i for client i."""
    size = len(programs.cosines)
    systems = FreeSystems.of(programs.cosines)
    if systems.indefinite:  # else the programs would have no solution; the certificate tells what this costs
        programs = replace(programs, cosines=systems.shifted)
    duals = np.zeros((size, size))
    best = 0.0
    rows = np.arange(size)
    guess = np.zeros((size, size))
    previous = _STAGES[0][0]
    for penalty, least in _STAGES:
        steps = min(_MOST_STEPS * least, least * size // len(rows))
        clipped = np.clip(guess, 0.0, programs.limit)
        # What lies past the bounds is the product over the penalty.
        guess = split(programs, rows, clipped + (guess - clipped) * (previous / penalty), penalty, steps)
        previous = penalty
        clipped = np.clip(guess, 0.0, programs.limit)
        errors = programs.residuals(rows, clipped)
        duals[rows[errors <= _SOLVED]] = clipped[errors <= _SOLVED]
        rows, guess, clipped = rows[errors > _SOLVED], guess[errors > _SOLVED], clipped[errors > _SOLVED]
        tried = np.arange(0, len(rows), max(1, len(rows) // _TRIED))
        _, errors = _newton(programs, systems, rows[tried], clipped[tried], guess[tried], _TRIAL_STEPS)
        share = float(np.mean(errors <= _SOLVED)) if rows.size else 0.0
        if share >= best:
            duals[rows], best = clipped, share
        if share >= 0.5:
            found, errors = _newton(programs, systems, rows, clipped, guess, _NEWTON_STEPS)
            duals[rows[errors <= _SOLVED]] = found[errors <= _SOLVED]
            rows, guess = rows[errors > _SOLVED], guess[errors > _SOLVED]
        if rows.size == 0:
            return duals
    duals[rows] = pivot(programs, systems, rows, duals[rows], _SOLVED)
    return duals


def _newton(
    programs: ConsensusPrograms,
    systems: FreeSystems,
    rows: IndexArray,
    duals: FloatArray,
    moved: FloatArray,
    steps: int,
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
        unsolved = residuals[still] > _SOLVED
        still, duals, moved = still[unsolved], duals[unsolved], moved[unsolved]
        if still.size == 0:
            break
    return found, residuals
