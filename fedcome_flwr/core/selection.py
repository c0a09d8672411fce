"""Who takes part in a round: consensus selection by simulated annealing, or a uniform draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .checks import check_at_least, check_share
from .similarity import SimilarityTable


@dataclass(frozen=True)
class Selection:
    """The clients chosen for a round.

    Attributes
    ----------
    keys
        All chosen clients, sorted.
    annealed
        Those of them that simulated annealing chose, sorted.
    energy
        H of the annealed clients (equation 12), 0 when there are none.
    """

    keys: tuple[str, ...]
    annealed: tuple[str, ...] = ()
    energy: float = 0.0


class Selector(Protocol):
    """Chooses clients and learns from each round. Selectors are values: what is learnt stays in the table."""

    def choose(
        self, present: Sequence[str], count: int, *, table: SimilarityTable, rng: np.random.Generator
    ) -> Selection:
        """Choose ``count`` of the clients that are present (all of them if there are fewer)."""

    def observe(self, table: SimilarityTable, keys: Sequence[str], gram: NDArray[np.float64]) -> SimilarityTable:
        """The table after a round in which the clients' pseudo-gradients had this Gram matrix."""


@dataclass(frozen=True)
class UniformSelection:
    """Every set of clients is equally likely; nothing is remembered."""

    def choose(
        self, present: Sequence[str], count: int, *, table: SimilarityTable, rng: np.random.Generator
    ) -> Selection:
        """Draw without replacement from the sorted keys."""
        keys = sorted(present)
        return Selection(tuple(keys[index] for index in sorted(_draw(np.arange(len(keys)), count, rng))))

    def observe(self, table: SimilarityTable, keys: Sequence[str], gram: NDArray[np.float64]) -> SimilarityTable:
        """The table as it was."""
        return table


@dataclass(frozen=True)
class ConsensusSelection:
    r"""The least similar clients, found by simulated annealing, and some at random (section 4.3 of the paper).

    Of the M clients of a round, :math:`\lfloor \mu M \rfloor` are the best set visited while annealing

    .. math:: H(P) = \sum_{i, j \in P} S_{ij}

    over ordered pairs, i = j included, S being the similarity table; the others are drawn uniformly from the rest.
    With the diagonal in H clients that were seldom seen cost less than familiar ones, so newcomers are tried soon.

    Parameters
    ----------
    mu
        Share of the round's clients that annealing chooses, 0 to 1.
    alpha
        Share of the old value when the table learns a new cosine, 0 to 1.
    iterations
        Number of proposed swaps.
    initial_temperature
        Temperature of the first swap, in units of cosines; positive.
    decay
        Factor on the temperature after every swap, in (0, 1].
    memory_rounds
        Pairs of clients that did not meet in the last so many rounds are forgotten, which bounds the table where
        clients come and go. ``None``: never.
    """

    mu: float = 0.7
    alpha: float = 0.5
    iterations: int = 600
    initial_temperature: float = 1.0
    decay: float = 0.98
    memory_rounds: int | None = None

    def __post_init__(self) -> None:
        check_share("mu", self.mu)
        check_share("alpha", self.alpha)
        check_at_least("iterations", self.iterations, 0)
        if not 0 < self.initial_temperature < np.inf:
            raise ValueError(f"initial_temperature: expected a positive number, found {self.initial_temperature!r}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay: expected a number in (0, 1], found {self.decay!r}")
        if self.memory_rounds is not None:
            check_at_least("memory_rounds", self.memory_rounds, 1)

    def choose(
        self, present: Sequence[str], count: int, *, table: SimilarityTable, rng: np.random.Generator
    ) -> Selection:
        """Anneal a share μ of the seats, then fill the others at random."""
        keys = sorted(present)
        count = min(count, len(keys))
        seats = share_of(count, self.mu)
        chosen, energy = self._anneal(keys, seats, table, rng)
        annealed = tuple(keys[index] for index in np.sort(chosen).tolist())
        drawn = _draw(np.delete(np.arange(len(keys)), chosen), count - seats, rng)
        return Selection(tuple(sorted(annealed + tuple(keys[index] for index in drawn))), annealed, energy)

    def observe(self, table: SimilarityTable, keys: Sequence[str], gram: NDArray[np.float64]) -> SimilarityTable:
        """Average the round's cosines into the table (equation 15)."""
        return table.observed(keys, gram, self.alpha, memory_rounds=self.memory_rounds)

    def _anneal(
        self, keys: Sequence[str], seats: int, table: SimilarityTable, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], float]:
        """The best set of ``seats`` clients visited, as places in ``keys``, and its energy.

        All swaps are drawn beforehand, so that no more similarities are looked up than those among the first set and
        the proposed clients, however many are present. A swap's change of energy is taken from one row each of the
        leaving and the entering client, O(seats).
        """
        order = rng.permutation(len(keys))
        first, others = order[:seats], order[seats:]
        if seats == 0 or len(others) == 0:
            return first, float(table.among([keys[index] for index in first.tolist()]).sum())
        leaving = rng.integers(seats, size=self.iterations)
        proposed, entering = np.unique(rng.integers(len(others), size=self.iterations), return_inverse=True)
        # log u < −ΔH / τ instead of u < exp(−ΔH / τ), which overflows as τ falls
        thresholds = np.log1p(-rng.random(self.iterations))
        candidates = np.concatenate([first, others[proposed]])
        similarity = table.among([keys[index] for index in candidates.tolist()])
        inside, outside = np.arange(seats), np.arange(seats, len(candidates))
        energy = float(similarity[np.ix_(inside, inside)].sum())
        best, best_energy = inside.copy(), energy
        temperature = self.initial_temperature
        for out, into, threshold in zip(leaving, entering, thresholds, strict=True):
            old, new = inside[out], outside[into]
            change = swap_energy(similarity, inside, old, new)
            if change <= 0 or threshold * temperature < -change:
                inside[out], outside[into] = new, old
                energy += change
                if energy < best_energy:
                    best, best_energy = inside.copy(), energy
            temperature *= self.decay
        return candidates[best], float(similarity[np.ix_(best, best)].sum())


def share_of(count: int, share: float) -> int:
    """A share of a number of clients, rounded down: 29 of 100 for 0.29, whose product is 28.999… in binary."""
    return int(np.floor(count * share + 1e-9))


def swap_energy(
    similarity: NDArray[np.float64], inside: NDArray[np.intp], leaving: np.intp, entering: np.intp
) -> float:
    """Change of H when one client of the set leaves and another enters, in O(set size).

    Every pair is counted in both orders and each client with itself once.
    """
    difference = similarity[entering].take(inside) - similarity[leaving].take(inside)
    without = difference.sum() - (similarity[entering, leaving] - similarity[leaving, leaving])
    return float(2 * without + similarity[entering, entering] - similarity[leaving, leaving])


def _draw(places: NDArray[np.intp], count: int, rng: np.random.Generator) -> list[int]:
    """Some of the places, each set of them equally likely."""
    drawn: list[int] = places[rng.choice(len(places), size=min(count, len(places)), replace=False)].tolist()
    return drawn
