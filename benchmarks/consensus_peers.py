"""The solvers that `consensus.py` compares: ours, and those that solve one program after the other."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedcome_flwr.core.dual_cone import solve_consensus

FloatArray = NDArray[np.float64]
# What all programs of a matrix share is prepared once; the function that comes back solves the given programs.
Prepare = Callable[[FloatArray], Callable[[NDArray[np.intp]], None]]

LIMIT = 0.3


@dataclass(frozen=True)
class Solver:
    """A way to solve the programs, and the package that it needs."""

    name: str
    prepare: Prepare
    package: str | None = None


def factor_of(gram: FloatArray) -> FloatArray:
    """F with gram = F Fᵀ after rows are scaled to length one, shape ``[m, rank]``."""
    norms = np.sqrt(np.diagonal(gram))
    values, vectors = np.linalg.eigh(gram / np.outer(norms, norms))
    kept = values > len(gram) * np.finfo(float).eps * values[-1]
    return np.ascontiguousarray(vectors[:, kept] * np.sqrt(values[kept]))


def ours(limit: float | None) -> Prepare:
    """All programs, whichever are asked for."""

    def prepare(gram: FloatArray) -> Callable[[NDArray[np.intp]], None]:
        def solve(rows: NDArray[np.intp]) -> None:
            solution = solve_consensus(gram, influence_limit=limit)
            assert solution.certified, f"residual {solution.residual:.1e}"

        return solve

    return prepare


def by_nnls(gram: FloatArray) -> Callable[[NDArray[np.intp]], None]:
    factor = factor_of(gram)
    matrix = np.ascontiguousarray(factor.T)

    def solve(rows: NDArray[np.intp]) -> None:
        for row in rows:
            nnls(matrix, -factor[row])

    return solve


def by_daqp(gram: FloatArray) -> Callable[[NDArray[np.intp]], None]:
    """The projection itself, min ½‖y − F_i‖² with F y ≥ 0: its identity Hessian is DAQP's fastest form."""
    import daqp

    factor = factor_of(gram)
    m, rank = factor.shape
    model = daqp.Model()
    model.setup(np.eye(rank), -factor[0], factor, np.full(m, 1e30), np.zeros(m), np.zeros(m, dtype=np.int32))

    def solve(rows: NDArray[np.intp]) -> None:
        for row in rows:
            model.update(f=-factor[row])
            _, _, status, _ = model.solve()
            assert status == 1, status

    return solve


def by_upgrad(gram: FloatArray) -> Callable[[NDArray[np.intp]], None]:
    """TorchJD's UPGrad as it ships: quadprog, and 1e-4 added to the normalised diagonal."""
    import torch
    from torchjd.linalg import QuadprogProjector

    def solve(rows: NDArray[np.intp]) -> None:
        QuadprogProjector()(torch.eye(len(gram), dtype=torch.float64)[rows], torch.from_numpy(gram))

    return solve


def by_cvxopt(gram: FloatArray) -> Callable[[NDArray[np.intp]], None]:
    """The loop of FedCOME's published code, with CVXOPT's own tolerances: min ½ aᵀKa − K_iᵀa, K a ≥ 0."""
    from cvxopt import matrix, solvers

    scaled = matrix(gram / gram.diagonal().mean())
    bound = matrix(np.zeros(len(gram)))

    def solve(rows: NDArray[np.intp]) -> None:
        for row in rows:
            solvers.qp(scaled, -scaled[:, int(row)], -scaled, bound, options={"show_progress": False})

    return solve


OURS = Solver("ours", ours(None))
LIMITED = Solver(f"ours, limit {LIMIT}", ours(LIMIT))
PEERS = (
    Solver("TorchJD UPGrad", by_upgrad, "torchjd"),
    Solver("CVXOPT", by_cvxopt, "cvxopt"),
    Solver("DAQP", by_daqp, "daqp"),
    Solver("SciPy nnls", by_nnls),
)
