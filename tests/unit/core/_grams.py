"""Gram matrices of a stated kind. Each function says why its construction has the property in its name.

All take a generator and the number of clients m, and return a float64 matrix of shape ``[m, m]``.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Kind = Callable[[Generator, int], FloatArray]


def gram_of(pseudo_gradients: FloatArray) -> FloatArray:
    """Inner products of the rows, exactly symmetric."""
    gram = pseudo_gradients @ pseudo_gradients.T
    return (gram + gram.T) / 2


def generic(rng: Generator, m: int) -> FloatArray:
    """Full rank with probability one: m Gaussian vectors in 2m dimensions, of unequal lengths."""
    return gram_of(rng.standard_normal((m, 2 * m)) * rng.uniform(0.5, 2.0, (m, 1)))


def conflicting(rng: Generator, m: int) -> FloatArray:
    """Pairs conflict on average: Σ_{i≠j} ⟨g_i, g_j⟩ = ‖Σ g_i‖² − Σ ‖g_i‖² < 0, since Σ g_i is a tenth
    of the sum of nearly orthogonal vectors. Still of full rank.
    """
    vectors = rng.standard_normal((m, 2 * m))
    return gram_of(vectors - 0.9 * vectors.mean(axis=0))


def agreeing(rng: Generator, m: int) -> FloatArray:
    """No two clients conflict: vectors with positive entries have positive inner products."""
    return gram_of(rng.uniform(0.1, 1.0, (m, 2 * m)))


def low_rank(rng: Generator, m: int) -> FloatArray:
    """Rank at most ⌈m / 3⌉, more clients than dimensions: the vectors have that many entries."""
    return gram_of(rng.standard_normal((m, -(-m // 3))))


def at_the_threshold(rng: Generator, m: int) -> FloatArray:
    """Rank ⌈m / 2⌉: by Wendel's theorem half of such cones {v : Gᵀv ≥ 0} are {0}: hardest to tell."""
    return gram_of(rng.standard_normal((m, -(-m // 2))))


def on_a_line(rng: Generator, m: int) -> FloatArray:
    """Rank one with both signs: multiples of one vector, the first two with opposite sign."""
    multiples = rng.uniform(0.5, 2.0, m) * np.where(np.arange(m) % 2, -1.0, 1.0)
    return np.outer(multiples, multiples)


def duplicated(rng: Generator, m: int) -> FloatArray:
    """The second half of the clients repeats the first bit for bit."""
    vectors = rng.standard_normal((m, 2 * m))
    vectors[m // 2 :] = vectors[: m - m // 2]
    return gram_of(vectors)


def opposed(rng: Generator, m: int) -> FloatArray:
    """The second half of the clients is minus the first: cosine −1 exactly."""
    vectors = rng.standard_normal((m, 2 * m))
    vectors[m // 2 :] = -vectors[: m - m // 2]
    return gram_of(vectors)


def one_against_all(rng: Generator, m: int) -> FloatArray:
    """The last client is minus the mean of the others, so a positive combination of all is zero."""
    vectors = rng.standard_normal((m, 2 * m))
    vectors[-1] = -vectors[:-1].sum(axis=0) / max(1, m - 1)
    return gram_of(vectors)


def zero_sum(rng: Generator, m: int) -> FloatArray:
    """All clients sum to zero: only a vector orthogonal to all of them hurts nobody, so every g̃ is zero."""
    vectors = rng.standard_normal((m, m))
    return gram_of(vectors - vectors.mean(axis=0))


def ill_conditioned(rng: Generator, m: int) -> FloatArray:
    """Condition 1e12 before normalisation: singular values from 1 to 1e-6 on a random orthonormal basis."""
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    return gram_of(basis * np.logspace(0, -6, m))


def nearly_opposed(rng: Generator, m: int) -> FloatArray:
    """Two camps around ± one vector, 1e-3 apart inside a camp: cosines within 1e-6 of ± 1."""
    camp = np.where(np.arange(m) % 2, -1.0, 1.0)
    return gram_of(np.outer(camp, rng.standard_normal(2 * m)) + 1e-3 * rng.standard_normal((m, 2 * m)))


def badly_scaled(rng: Generator, m: int) -> FloatArray:
    """Norms from 1e-10 to 1e10: a generic matrix with row and column i multiplied by such a number."""
    scales = 10.0 ** rng.uniform(-10.0, 10.0, m)
    return scales[:, None] * generic(rng, m) * scales


def extremely_scaled(rng: Generator, m: int) -> FloatArray:
    """Norms from 1e-70 to 1e149: products of two squared norms leave the range of float64."""
    scales = 10.0 ** np.linspace(-70.0, 149.0, m)
    return scales[:, None] * generic(rng, m) * scales


def tiny(rng: Generator, m: int) -> FloatArray:
    """All entries around 1e-20."""
    return 1e-20 * generic(rng, m)


def huge(rng: Generator, m: int) -> FloatArray:
    """All entries around 1e20."""
    return 1e20 * generic(rng, m)


def with_zero_clients(rng: Generator, m: int) -> FloatArray:
    """Every third client has sent the zero vector: its row and column are zero."""
    absent = np.arange(m) % 3 == 0
    gram = generic(rng, m)
    gram[absent] = 0.0
    gram[:, absent] = 0.0
    return gram


def integer_valued(rng: Generator, m: int) -> FloatArray:
    """Entries −1, 0 and 1 in three dimensions: exact ties, duplicates, opposites and zeros by chance."""
    return gram_of(rng.integers(-1, 2, (m, 3)).astype(np.float64))


def zero(rng: Generator, m: int) -> FloatArray:
    """Nobody has moved."""
    return np.zeros((m, m))


KINDS: tuple[Kind, ...] = (
    generic,
    conflicting,
    agreeing,
    low_rank,
    at_the_threshold,
    on_a_line,
    duplicated,
    opposed,
    one_against_all,
    zero_sum,
    ill_conditioned,
    nearly_opposed,
    badly_scaled,
    extremely_scaled,
    tiny,
    huge,
    with_zero_clients,
    integer_valued,
    zero,
)
