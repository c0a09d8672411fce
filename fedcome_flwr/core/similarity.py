"""The server's similarity table: how alike the clients' pseudo-gradients have been, by client key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._saved_arrays import like_arrays, pack_texts, unpack_texts

Places = NDArray[np.int64]

_SECOND = 2**32 - 1  # the bits of a pair's second place
_NUMBERS = ("pairs", "values", "last_seen", "observations")


@dataclass(frozen=True, eq=False)
class SimilarityTable:
    r"""Exponentially averaged cosines between clients, 0 for pairs that never met.

    Equation 15 of the paper. Only pairs that met are stored, each once, 20 bytes a pair; M clients a round meet in
    M (M + 1) / 2 pairs, a client's pair with itself among them. A table is a value: :meth:`observed` gives a new one,
    in time proportional to the stored pairs.

    Attributes
    ----------
    places
        The place of each client that ever had a direction, in the order in which they were first seen.
    pairs
        The pairs that met, :math:`2^{32} i + j` with places :math:`i \le j`, rising, shape ``[p]``.
    values
        Their similarities, shape ``[p]``. The diagonal is part of the table: it grows from 0 to 1 as a client takes
        part, so newcomers count as the least similar.
    last_seen
        The observation that changed each pair last, counted from 1, shape ``[p]``.
    observations
        Number of rounds observed.
    """

    places: Mapping[str, int] = field(default_factory=dict, repr=False)
    pairs: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    last_seen: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    observations: int = 0

    def __post_init__(self) -> None:
        shapes = self.pairs.shape, self.values.shape, self.last_seen.shape
        if shapes != (self.pairs.shape[:1],) * 3:
            raise ValueError(f"expected pairs, values and last_seen to be vectors of one length, found shapes {shapes}")

    @property
    def keys(self) -> tuple[str, ...]:
        """The clients in the table, in the order in which they were first seen."""
        return tuple(self.places)

    def among(self, keys: Sequence[str]) -> NDArray[np.float64]:
        """Similarities among the given clients, shape ``[k, k]``, symmetric; pairs that never met have zeros."""
        result = np.zeros((len(keys), len(keys)))
        found = np.array([self.places.get(key, -1) for key in keys], dtype=np.int64)
        order = np.argsort(found, kind="stable")[np.count_nonzero(found < 0) :]  # rising pairs are found faster
        first, second = np.triu_indices(len(order))
        at, met = self._find(_pairs(found[order[first]], found[order[second]]))
        rows, columns, values = order[first[met]], order[second[met]], self.values[at[met]]
        result[rows, columns] = values
        result[columns, rows] = values
        return result

    def observed(
        self, keys: Sequence[str], gram: NDArray[np.float64], alpha: float, *, memory_rounds: int | None = None
    ) -> "SimilarityTable":
        r"""The table after a round: :math:`S_{ij} \leftarrow \alpha S_{ij} + (1 - \alpha) \cos(g_i, g_j)`, i = j too.

        Clients with a zero pseudo-gradient have no direction: their entries stay as they are.

        Parameters
        ----------
        keys
            The clients of the round, each once.
        gram
            Their Gram matrix, shape ``[m, m]``.
        alpha
            Share of the old value, 0 to 1.
        memory_rounds
            Pairs that none of the last so many observations changed are forgotten, and with its pair with itself a
            client. ``None``: never.

        Raises
        ------
        ValueError
            The Gram matrix has another shape, or a key comes twice.
        """
        if gram.shape != (len(keys), len(keys)) or len(set(keys)) < len(keys):
            raise ValueError(
                f"expected {len(keys)} distinct keys and a Gram matrix of as many rows and columns, "
                f"found {len(set(keys))} distinct keys and the shape {gram.shape}"
            )
        moving = np.flatnonzero(np.diagonal(gram) > 0)
        names = [keys[index] for index in moving.tolist()]
        newcomers = [key for key in names if key not in self.places]
        places = {**self.places, **dict(zip(newcomers, range(len(self.places), 2**31), strict=False))}
        rows = np.array([places[key] for key in names], dtype=np.int64)
        order = np.argsort(rows)
        first, second = np.triu_indices(len(order))
        cosines = _cosines(gram[np.ix_(moving[order], moving[order])])[first, second]
        rows = rows[order]
        table = replace(self, places=places if newcomers else self.places, observations=self.observations + 1)
        table = table._averaged(_pairs(rows[first], rows[second]), cosines, alpha)
        return table if memory_rounds is None else table._forgetting(memory_rounds)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The table as named arrays, in proportion to what is stored; :meth:`from_arrays` reads them.

        The first two hold the client keys: their bytes in UTF-8, one key after the other, and each key's length.
        """
        text, lengths = pack_texts(self.keys)
        numbers = {name: np.asarray(getattr(self, name)) for name in _NUMBERS}
        return {"keys": text, "key_lengths": lengths, **numbers}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "SimilarityTable":
        """The table that :meth:`to_arrays` wrote.

        Raises
        ------
        ValueError
            An array is missing, or they contradict each other; the text says which and how.
        """
        found = like_arrays(arrays, cls().to_arrays(), "similarity table")
        keys = unpack_texts(found["keys"], found["key_lengths"], "similarity table")
        places = {key: place for place, key in enumerate(keys)}
        pairs, values, last_seen, observations = (found[name] for name in _NUMBERS)
        table = cls(places, pairs, values, last_seen, int(observations))
        first, second = table.pairs >> 32, table.pairs & _SECOND
        own = first[first == second]
        for name, fine, expected in (
            ("keys", len(places) == len(keys), "distinct keys"),
            ("pairs", np.all(np.diff(table.pairs) > 0), "rising numbers"),
            ("pairs", np.all((first >= 0) & (first <= second) & (second < len(keys))), "ordered places of the keys"),
            ("pairs", np.array_equal(own, np.arange(len(keys))), "every client's pair with itself"),
            ("values", np.all(np.abs(table.values) <= 1), "numbers in [-1, 1]"),
            ("last_seen", np.all((table.last_seen > 0) & (table.last_seen <= table.observations)), "past observations"),
        ):
            if not fine:
                raise ValueError(f"similarity table, {name}: expected {expected}, found others among them")
        return table

    def _find(self, pairs: Places) -> tuple[Places, NDArray[np.bool_]]:
        """Where the given pairs stand or would stand, and which of them are stored."""
        at = np.searchsorted(self.pairs, pairs)
        if len(self.pairs) == 0:
            return at, np.zeros(len(pairs), dtype=np.bool_)
        return at, self.pairs[np.minimum(at, len(self.pairs) - 1)] == pairs

    def _averaged(self, pairs: Places, cosines: NDArray[np.float64], alpha: float) -> "SimilarityTable":
        """The table with the cosines of the given rising pairs averaged in."""
        at, met = self._find(pairs)
        values, last_seen = self.values.copy(), self.last_seen.copy()
        values[at[met]] = alpha * values[at[met]] + (1 - alpha) * cosines[met]
        last_seen[at[met]] = self.observations
        if met.all():
            return replace(self, values=values, last_seen=last_seen)
        at, new = at[~met], ~met
        return replace(
            self,
            pairs=np.insert(self.pairs, at, pairs[new]),
            values=np.insert(values, at, (1 - alpha) * cosines[new]),
            last_seen=np.insert(last_seen, at, self.observations),
        )

    def _forgetting(self, memory_rounds: int) -> "SimilarityTable":
        """The table without the pairs that none of the last observations changed."""
        kept = self.last_seen > self.observations - memory_rounds
        if kept.all():
            return self
        places, pairs = self.places, self.pairs[kept]
        first, second = pairs >> 32, pairs & _SECOND
        # A client's pair with itself is as recent as its most recent pair: without it the client has none.
        remaining = first[first == second]
        if len(remaining) < len(places):
            keys = self.keys
            places = {keys[place]: index for index, place in enumerate(remaining.tolist())}
            index = np.zeros(len(keys), dtype=np.int64)
            index[remaining] = np.arange(len(remaining))
            pairs = _pairs(index[first], index[second])  # rising still, as the order of the clients is kept
        return replace(self, places=places, pairs=pairs, values=self.values[kept], last_seen=self.last_seen[kept])


def _pairs(first: Places, second: Places) -> Places:
    return first << 32 | second


def _cosines(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines of pseudo-gradients that do not vanish, exactly symmetric, so that their order does not matter."""
    norms = np.sqrt(np.diagonal(gram))
    cosines = np.clip(gram / norms[:, None] / norms, -1, 1)
    return np.asarray((cosines + cosines.T) / 2)
