"""The server's similarity table: how alike the clients' pseudo-gradients have been, by client key."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SimilarityTable:
    """Exponentially averaged cosines between clients, 0 for pairs that never met.

    Equation 15 of the paper. A table is a value: :meth:`observed` gives a new one.

    Attributes
    ----------
    keys
        The clients seen so far, in the order in which they were first seen.
    values
        Symmetric, shape ``[n, n]``; ``values[i, j]`` belongs to ``keys[i]`` and ``keys[j]``. The diagonal is part of
        the table: it grows from 0 to 1 as a client takes part, so newcomers count as the least similar.
    """

    keys: tuple[str, ...] = ()
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        size = len(self.keys)
        if self.values.shape != (size, size):
            raise ValueError(
                f"expected similarities of shape {(size, size)} for {size} keys, found {self.values.shape}"
            )

    def among(self, keys: Sequence[str]) -> NDArray[np.float64]:
        """Similarities among the given clients, shape ``[k, k]``; unknown clients have zeros."""
        place = {key: index for index, key in enumerate(self.keys)}
        known = np.array([place.get(key, -1) for key in keys], dtype=np.intp)
        result = np.zeros((len(keys), len(keys)))
        seen = np.flatnonzero(known >= 0)
        result[np.ix_(seen, seen)] = self.values[np.ix_(known[seen], known[seen])]
        return result

    def observed(self, keys: Sequence[str], gram: NDArray[np.float64], alpha: float) -> "SimilarityTable":
        r"""The table after a round: :math:`S_{ij} \leftarrow \alpha S_{ij} + (1 - \alpha) \cos(g_i, g_j)`, i = j too.

        Clients with a zero pseudo-gradient have no direction: their entries stay as they are.

        Parameters
        ----------
        keys
            The clients of the round.
        gram
            Their Gram matrix, shape ``[m, m]``.
        alpha
            Share of the old value, 0 to 1.
        """
        norms = np.sqrt(np.diagonal(gram))
        moving = np.flatnonzero(norms > 0)
        divisors = np.where(norms > 0, norms, 1.0)
        cosines = np.clip(gram / divisors[:, None] / divisors, -1, 1)
        table = self._with(keys)
        place = {key: index for index, key in enumerate(table.keys)}
        rows = np.array([place[keys[index]] for index in moving.tolist()], dtype=np.intp)
        pairs = np.ix_(rows, rows)
        table.values[pairs] = alpha * table.values[pairs] + (1 - alpha) * cosines[np.ix_(moving, moving)]
        return table

    def _with(self, keys: Sequence[str]) -> "SimilarityTable":
        """A copy that knows the given clients."""
        known = set(self.keys)
        all_keys = self.keys + tuple(key for key in keys if key not in known)
        values = np.zeros((len(all_keys), len(all_keys)))
        values[: len(self.keys), : len(self.keys)] = self.values
        return SimilarityTable(all_keys, values)
