r"""Our exact solver for all programs at once: splitting finds the active sets, Newton steps finish them.

1. **Splitting** (ADMM) treats all programs together: one product of two ``[m, m]`` matrices per step, since
   the programs share their Hessian. It gives a near solution and, with it, a guess of the *free set* of each
   program: the duals strictly between their bounds.
2. **Newton steps** (primal-dual active set) solve the optimality conditions on the guessed free sets, one
   small Cholesky factorisation per distinct set, and correct the guess from the signs. A program whose
   conditions hold is finished; usually all are, after two or three steps.
3. **Pivoting** (Lawson and Hanson's method, with an upper bound) repairs programs with few wrong indices
   left: it moves one index at a time and lowers the objective at every move, so it cannot cycle, which Newton
   steps alone can near singular matrices.
4. Programs still open go back to 1 with a smaller penalty, which finds directions with small eigenvalues that
   the first stage barely moves along; after the last stage, pivoting goes on to the end.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from ._programs import ConsensusPrograms, FloatArray

IndexArray = NDArray[np.intp]

# Penalty, on the scale of the eigenvalues of a cosine matrix, and number of steps. The first stage settles
# measured federations of 100 to 1000 clients nearly by itself, the others serve condition numbers up to 1e12.
_STAGES = ((0.6, 30), (1e-2, 60), (1e-4, 60), (1e-6, 60))
_OVER_RELAXATION = 1.8  # fastest on measured Gram matrices; any value below 2 converges
_NEWTON_STEPS = 6  # a program that needs more has nearly always begun to cycle
_QUICK_MOVES = 3  # of pivoting between stages: they cost a program about as much as its Newton steps did
_REFINEMENTS = 4
_SOLVED = 1e-11  # residual at which a program is finished: well below the certificate of 1e-9


def solve_newton(programs: ConsensusPrograms) -> FloatArray:
    """Return the normalised duals of all programs, shape ``[m, m]``, row i for client i."""
    size = len(programs.hessian)
    duals = np.zeros((size, size))
    residuals = np.full(size, np.inf)
    rows = np.arange(size)
    split = np.zeros((size, size))
    slack = np.zeros((size, size))
    previous = _STAGES[0][0]
    for stage, (penalty, steps) in enumerate(_STAGES, start=1):
        slack *= previous / penalty
        previous = penalty
        split, slack = _split(programs, rows, split, slack, penalty, steps)
        found, errors = _newton(programs, rows, split, split + slack)
        better = errors < residuals[rows]
        duals[rows[better]] = found[better]
        residuals[rows[better]] = errors[better]
        last = stage == len(_STAGES)
        for row in rows[residuals[rows] > _SOLVED]:
            moved, finished = _pivot(programs, row, duals[row], 10 * size if last else _QUICK_MOVES)
            if finished or last:
                duals[row], residuals[row] = moved, 0.0
        unsolved = residuals[rows] > _SOLVED
        rows, split, slack = rows[unsolved], split[unsolved], slack[unsolved]
        if rows.size == 0:
            break
    return duals


def _split(
    programs: ConsensusPrograms,
    rows: IndexArray,
    split: FloatArray,
    slack: FloatArray,
    penalty: float,
    steps: int,
) -> tuple[FloatArray, FloatArray]:
    r"""Run a stage of over-relaxed ADMM on the given programs.

    The step without bounds minimises :math:`\tfrac12 a^\top \hat K a + \tfrac\rho2 \|a - e_i - z + y\|^2`,
    hence :math:`a = B (e_i + z - y)` with :math:`B = \rho (\hat K + \rho)^{-1}` for all programs. Returns the
    feasible duals z and the scaled multipliers y, which tend to :math:`-w / \rho`.
    """
    shrunk = programs.eigenvectors * (penalty / (programs.eigenvalues + penalty))
    smoother = shrunk @ programs.eigenvectors.T
    own = np.eye(len(programs.hessian))[rows]
    for _ in range(steps):
        unbounded = (own + split - slack) @ smoother - own
        moved = _OVER_RELAXATION * unbounded + (1.0 - _OVER_RELAXATION) * split + slack
        split = np.clip(moved, 0.0, programs.limit)
        slack = moved - split
    return split, slack


def _newton(
    programs: ConsensusPrograms, rows: IndexArray, duals: FloatArray, moved: FloatArray
) -> tuple[FloatArray, FloatArray]:
    r"""Solve the optimality conditions on guessed free sets, a few times.

    ``moved`` is the guess: an index is free where it lies strictly between the bounds, and at the bound that
    it passes otherwise. The next guess is :math:`\hat v - w`. Returns the best duals seen, and their
    residuals.
    """
    limit, linear = programs.limit, programs.hessian[rows]
    best = duals.copy()
    residuals = np.full(len(rows), np.inf)
    still = np.arange(len(rows))
    for _ in range(_NEWTON_STEPS):
        free = (moved > 0.0) & (moved < limit)
        duals = np.where(free, duals, np.where(moved >= limit, limit, 0.0))
        gradients = duals @ programs.hessian + linear[still]
        members = defaultdict(list)
        for position, free_set in enumerate(free):
            members[free_set.tobytes()].append(position)
        for positions in members.values():
            indices = np.flatnonzero(free[positions[0]])
            block = np.ix_(np.array(positions), indices)
            duals[block] -= _solve_free(programs, indices, gradients[block])
        moved = duals - (duals @ programs.hessian + linear[still])
        errors = np.abs(duals - np.clip(moved, 0.0, limit)).max(axis=1)
        better = errors < residuals[still]
        best[still[better]] = duals[better]
        residuals[still[better]] = errors[better]
        unsolved = residuals[still] > _SOLVED
        still, duals, moved = still[unsolved], duals[unsolved], moved[unsolved]
        if still.size == 0:
            break
    return np.clip(best, 0.0, limit), residuals


def _solve_free(programs: ConsensusPrograms, indices: IndexArray, gradients: FloatArray) -> FloatArray:
    r"""Solve :math:`\hat K_{PP}\, x = r` for the free set P and each row r of ``gradients``, ``[n, p]``.

    The block is singular for, say, duplicated clients. A shift by the eigenvalue that counts as zero makes it
    definite, and refinement undoes the shift wherever the answer depends on it. Where even the shifted block
    has no factor the answer is 0: no move.
    """
    block = programs.hessian[indices][:, indices]
    steps = np.zeros_like(gradients)
    if indices.size == 0:
        return steps
    shifted = block.copy()
    shifted.flat[:: len(block) + 1] += programs.negligible
    factor, failed = lapack.dpotrf(shifted.T, overwrite_a=1)
    if failed:
        return steps
    remainder = gradients
    for _ in range(_REFINEMENTS):
        correction, _ = lapack.dpotrs(factor, remainder.T)
        steps += correction.T
        remainder = gradients - steps @ block
        if np.abs(remainder).max() < 0.01 * _SOLVED:
            break
    return steps


def _pivot(programs: ConsensusPrograms, row: np.intp, duals: FloatArray, moves: int) -> tuple[FloatArray, bool]:
    """Descend from feasible ``duals`` of one program, one index at a time, and tell whether it is solved."""
    hessian, limit = programs.hessian, programs.limit
    duals = duals.copy()
    free = (duals > 0.0) & (duals < limit)
    refused = np.zeros(len(duals), dtype=bool)
    entering = None
    for _ in range(moves):
        gradient = duals @ hessian + hessian[row]
        indices = np.flatnonzero(free)
        steps = -_solve_free(programs, indices, gradient[None, indices])[0]
        if entering is not None and steps[np.searchsorted(indices, entering)] * gradient[entering] >= 0.0:
            # Its gradient was rounding noise: moving it would not descend.
            free[entering], refused[entering], entering = False, True, None
            continue
        entering = None
        room = np.where(steps < 0.0, -duals[indices], limit - duals[indices])
        reach = np.divide(room, steps, out=np.full(len(steps), np.inf), where=steps != 0.0)
        fraction = min(1.0, float(reach.min(initial=np.inf)))
        if fraction > 0.0:
            refused[:] = False
        duals[indices] = np.clip(duals[indices] + fraction * steps, 0.0, limit)
        if fraction < 1.0:
            blocking = reach <= fraction
            duals[indices[blocking]] = np.where(steps[blocking] < 0.0, 0.0, limit)
            free[indices[blocking]] = False
            continue
        gradient = duals @ hessian + hessian[row]
        gain = np.where(duals >= limit, gradient, -gradient)
        gain[free | refused] = 0.0
        entering = int(gain.argmax())
        if gain[entering] <= _SOLVED:
            return duals, True
        free[entering] = True
    return duals, False
