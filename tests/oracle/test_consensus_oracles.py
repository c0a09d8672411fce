"""The consensus direction against independent solvers: TorchJD's UPGrad and CVXOPT."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcome_flwr.core.dual_cone import solve_consensus
from tests.unit.core import _grams as grams

FloatArray = NDArray[np.float64]

# TorchJD's solver needs a definite matrix. These are definite; for singular ones see the unit tests.
DEFINITE = (grams.generic, grams.conflicting, grams.agreeing)

slow = pytest.mark.slow
each_real_size = pytest.mark.parametrize("clients", [100, pytest.param(200, marks=slow)])


def real_gram(data_dir: Path, clients: int) -> FloatArray:
    """Of pseudo-gradients measured on MNIST: two thirds of the pairs conflict."""
    gram: FloatArray = np.load(data_dir / "grams" / f"mnist_{clients}_clients.npy")
    return gram


def some_weights(clients: int) -> FloatArray:
    return np.random.default_rng(clients).dirichlet(np.ones(clients))


def assert_same_direction(gram: FloatArray, ours: FloatArray, theirs: FloatArray) -> None:
    """‖u − u'‖ ≤ 1e-5 ‖u‖ for two directions given by their coefficients."""
    difference = ours - theirs
    assert difference @ gram @ difference <= 1e-10 * (ours @ gram @ ours)


def upgrad_coefficients(gram: FloatArray, client_weights: FloatArray) -> FloatArray:
    reason = "UPGrad is the independent oracle"
    torch = pytest.importorskip("torch", reason=reason)
    aggregation = pytest.importorskip("torchjd.aggregation", reason=reason)
    linalg = pytest.importorskip("torchjd.linalg", reason=reason)
    pytest.importorskip("quadprog", reason="TorchJD's solver")
    weighting = aggregation.UPGradWeighting(
        torch.from_numpy(client_weights), projector=linalg.QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)
    )
    coefficients: FloatArray = weighting(torch.from_numpy(gram)).numpy()
    return coefficients


@pytest.mark.parametrize("kind", DEFINITE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("clients", [2, 5, 30])
@pytest.mark.parametrize("solver", ["newton", "nnls"])
def test_upgrad_on_random_grams(kind: grams.Kind, clients: int, solver: str) -> None:
    gram = kind(np.random.default_rng(clients), clients)
    weights = some_weights(clients)
    ours = weights @ solve_consensus(gram, solver=solver).coefficients
    assert_same_direction(gram, ours, upgrad_coefficients(gram, weights))


@pytest.mark.parametrize("clients", [100, pytest.param(200, marks=slow), pytest.param(400, marks=slow)])
def test_upgrad_on_real_grams(data_dir: Path, clients: int) -> None:
    gram, weights = real_gram(data_dir, clients), some_weights(clients)
    ours = weights @ solve_consensus(gram).coefficients
    assert_same_direction(gram, ours, upgrad_coefficients(gram, weights))


@pytest.mark.parametrize("limit", [None, 0.1, 1.0])
@pytest.mark.parametrize("kind", grams.KINDS, ids=lambda kind: kind.__name__)
def test_cvxopt_on_random_grams(kind: grams.Kind, limit: float | None) -> None:
    """In units of Σ p_i ‖g_i‖ instead of ‖u‖, which is zero for some kinds."""
    pytest.importorskip("cvxopt", reason="the paper's program through an independent solver")
    clients = 15
    gram = kind(np.random.default_rng(clients), clients)
    norms = np.sqrt(np.diagonal(gram))
    weights = some_weights(clients)
    # Opposed clients leave the cone without an interior, where an interior-point method may not converge, on some
    # machines and not on others. Lawson and Hanson's method needs none.
    oracle = "nnls" if kind is grams.opposed and limit is None else "cvxopt"
    theirs_solution = solve_consensus(gram, solver=oracle, influence_limit=limit)
    assert theirs_solution.solver == oracle
    ours = weights @ solve_consensus(gram, influence_limit=limit).coefficients
    theirs = weights @ theirs_solution.coefficients
    scale = max(weights @ norms, np.finfo(float).tiny)
    difference = (ours - theirs) * norms / scale
    present = norms > 0
    cosines = gram[np.ix_(present, present)] / norms[present, None] / norms[present]
    assert difference[present] @ cosines @ difference[present] <= 1e-10


@each_real_size
@pytest.mark.parametrize("limit", [None, 0.3])
def test_cvxopt_on_real_grams(data_dir: Path, clients: int, limit: float | None) -> None:
    pytest.importorskip("cvxopt", reason="the paper's program through an independent solver")
    gram, weights = real_gram(data_dir, clients), some_weights(clients)
    ours, theirs = (
        weights @ solve_consensus(gram, solver=solver, influence_limit=limit).coefficients
        for solver in ("newton", "cvxopt")
    )
    assert_same_direction(gram, ours, theirs)


@each_real_size
@pytest.mark.parametrize("limit", [None, 0.3])
def test_nnls_on_real_grams(data_dir: Path, clients: int, limit: float | None) -> None:
    gram, weights = real_gram(data_dir, clients), some_weights(clients)
    ours, theirs = (
        weights @ solve_consensus(gram, solver=solver, influence_limit=limit).coefficients
        for solver in ("newton", "nnls")
    )
    assert_same_direction(gram, ours, theirs)


@pytest.mark.parametrize("limit", [None, 0.3])
@pytest.mark.parametrize("clients", [100, 200, 400, pytest.param(1000, marks=slow)])
def test_newton_settles_real_grams_by_itself(data_dir: Path, clients: int, limit: float | None) -> None:
    solution = solve_consensus(real_gram(data_dir, clients), influence_limit=limit)
    assert solution.certified
    assert solution.solver == "newton"
