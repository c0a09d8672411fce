"""The consensus programs, one at a time, through SciPy's and CVXOPT's solvers."""

import numpy as np
from scipy.optimize import lsq_linear, nnls

from ._programs import ConsensusPrograms, FloatArray

# CVXOPT's own tolerances, 1e-7, leave products of -1e-5 where constraints are nearly parallel.
_CVXOPT_OPTIONS = {"show_progress": False, "abstol": 1e-12, "reltol": 1e-12, "feastol": 1e-12}


def solve_nnls(programs: ConsensusPrograms) -> FloatArray:
    r"""Return the normalised duals, shape ``[m, m]``, by least squares on the eigenvalue factor F.

    .. math:: \hat v_i = \arg\min_{0 \le \hat v \le c} \| F^\top \hat v + F_i \|

    Without a limit by Lawson and Hanson's ``scipy.optimize.nnls``, with one by the bounded method of Stark
    and Parker (``lsq_linear``), which is exact too but much slower.
    """
    matrix = np.ascontiguousarray(programs.factor.T)
    if np.isinf(programs.limit):
        return np.array([nnls(matrix, -target)[0] for target in programs.factor])
    bounds = (0.0, programs.limit)
    # Loops of the method are steps of one index: SciPy's bound, one per index, is short near singular
    # matrices.
    loops = 10 * len(programs.factor)
    duals = [
        lsq_linear(matrix, -target, bounds, method="bvls", tol=1e-15, max_iter=loops).x for target in programs.factor
    ]
    return np.clip(duals, *bounds)  # the method leaves its bounds by rounding


def solve_cvxopt(programs: ConsensusPrograms) -> FloatArray:
    r"""Return the normalised duals, shape ``[m, m]``: the multipliers of the paper's program (6).

    Equation (6), :math:`\min \tfrac12 a^\top \hat K a - \hat K_i^\top a` subject to :math:`\hat K a \ge 0`,
    is put in the coordinates :math:`y = F^\top a`, where a singular :math:`\hat K` does no harm:

    .. math:: \min_{y,\, s \ge 0} \tfrac12 \|y - F_i\|^2 + c \sum_j s_j
              \quad \text{subject to} \quad F y + s \ge 0,

    with the slacks s only under an influence limit c. An interior-point method: its inactive multipliers are
    small, not zero, and where a client is just about to object the residual can stay near 1e-6.
    """
    try:
        from cvxopt import matrix, solvers
    except ImportError as missing:
        raise ImportError('solver="cvxopt" needs the package cvxopt: pip install "fedcome-flwr[cvxopt]"') from missing
    factor = programs.factor
    size, rank = factor.shape
    quadratic, constraints, cost = np.eye(rank), -factor, np.zeros(0)
    if np.isfinite(programs.limit):
        cost = np.full(size, programs.limit)
        quadratic = np.pad(quadratic, (0, size))
        constraints = np.block([[-factor, -np.eye(size)], [np.zeros((size, rank)), -np.eye(size)]])
    bound = matrix(np.zeros(len(constraints)))
    quadratic, constraints = matrix(quadratic), matrix(constraints)
    duals = np.empty((size, size))
    for row, target in enumerate(factor):
        linear = matrix(np.concatenate([-target, cost]))
        solved = solvers.qp(quadratic, linear, constraints, bound, options=_CVXOPT_OPTIONS)
        duals[row] = np.ravel(solved["z"])[:size]
    return np.clip(duals, 0.0, programs.limit)
