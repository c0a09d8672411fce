"""The Gram matrices of `consensus.py`: the ordinary one of a size, and those on which solvers stall."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def ordinary(m: int, data: Path | None) -> tuple[str, FloatArray]:
    """The measured matrix of m clients, or that of m Gaussian vectors in 2m dimensions."""
    path = data / "grams" / f"mnist_{m}_clients.npy" if data else None
    if path and path.is_file():
        return "mnist", np.load(path)
    vectors = np.random.default_rng(m).standard_normal((m, 2 * m))
    return "gaussian", vectors @ vectors.T


def worst_cases(m: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng((1, m))
    normal = rng.standard_normal
    camp = np.outer(np.where(np.arange(m) % 2, -1.0, 1.0), normal(2 * m))
    basis, _ = np.linalg.qr(normal((m, m)))
    half = normal((m // 2, 2 * m))
    vectors = normal((m, 2 * m))
    against = vectors.copy()
    against[-1] = -vectors[:-1].mean(axis=0)
    cases = {
        "m = 2 d": normal((m, m // 2)),
        "m = 3 d": normal((m, m // 3)),
        "m = 20 d": normal((m, max(1, m // 20))),
        "duplicated": np.vstack([half, half]),
        "opposed": np.vstack([half, -half]),
        "one against all": against,
        "camps within 1e-3": camp + 1e-3 * vectors,
        "camps within 1e-5": camp + 1e-5 * vectors,
        "camps within 1e-7": camp + 1e-7 * vectors,
        "condition 1e12": basis * np.logspace(0, -6, m),
        "norms 1e-10 to 1e10": (vectors - 0.9 * vectors.mean(axis=0)) * 10.0 ** rng.uniform(-10, 10, (m, 1)),
        "zero sum": vectors - vectors.mean(axis=0),
    }
    return {name: case @ case.T for name, case in cases.items()}
