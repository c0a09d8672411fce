import io
import itertools
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcome_flwr.core import ConsensusSelection, SimilarityTable


def test_the_table_averages_cosines_diagonal_included():
    gram = np.array([[4.0, -2.0], [-2.0, 4.0]])
    table = SimilarityTable().observed(["a", "b"], gram, alpha=0.5)
    np.testing.assert_allclose(table.among(["a", "b"]), [[0.5, -0.25], [-0.25, 0.5]])
    table = table.observed(["b", "a"], gram, alpha=0.5)
    np.testing.assert_allclose(table.among(["a", "b"]), [[0.75, -0.375], [-0.375, 0.75]])


def test_clients_are_known_by_key_and_the_table_grows():
    table = SimilarityTable().observed(["a", "b"], np.eye(2), alpha=0.0)
    grown = table.observed(["c", "a"], np.array([[1.0, 0.5], [0.5, 1.0]]), alpha=0.0)
    np.testing.assert_allclose(grown.among(["c", "b", "a", "unseen"])[0], [1, 0, 0.5, 0])
    assert table.keys == ("a", "b")  # the old value is untouched
    np.testing.assert_array_equal(table.among(["a", "b"]), np.eye(2))


def test_zero_pseudo_gradients_leave_their_entries_as_they_are():
    table = SimilarityTable().observed(["a", "b"], np.ones((2, 2)), alpha=0.5)
    after = table.observed(["a", "b"], np.array([[0.0, 0.0], [0.0, 1.0]]), alpha=0.5)
    np.testing.assert_allclose(after.among(["a", "b"]), [[0.5, 0.5], [0.5, 0.75]])


@pytest.mark.parametrize("scale", [1e-150, 1e-20, 1.0, 1e20, 1e150])
def test_only_directions_count(scale):
    gram = scale * np.array([[2.0, 1.0], [1.0, 2.0]])
    table = SimilarityTable().observed(["a", "b"], gram, 0.0)
    np.testing.assert_allclose(table.among(["a", "b"]), [[1, 0.5], [0.5, 1]])


class DenseTable:
    """Equation 15 on a square array, with loops and without forgetting anything of its own: the reference."""

    def __init__(self, names: list[str], alpha: float, memory_rounds: int | None) -> None:
        self.names, self.alpha, self.memory_rounds = names, alpha, memory_rounds
        self.values = np.zeros((len(names), len(names)))
        self.changed = np.full((len(names), len(names)), -(10**9))
        self.rounds = 0

    def observe(self, keys: list[str], gram: np.ndarray) -> None:
        self.rounds += 1
        norms = np.sqrt(np.diagonal(gram))
        for (i, one), (j, other) in itertools.product(enumerate(keys), repeat=2):
            if norms[i] > 0 and norms[j] > 0:
                both = (np.clip(gram[i, j] / norms[i] / norms[j], -1, 1) for i, j in ((i, j), (j, i)))
                place = self.names.index(one), self.names.index(other)
                self.values[place] = self.alpha * self.values[place] + (1 - self.alpha) * (sum(both) / 2)
                self.changed[place] = self.rounds
        if self.memory_rounds is not None:
            self.values[self.changed <= self.rounds - self.memory_rounds] = 0.0

    def pairs(self) -> int:
        """Number of unordered pairs that met and are remembered."""
        oldest = -1 if self.memory_rounds is None else self.rounds - self.memory_rounds
        return int(np.sum(np.triu(self.changed > oldest)))


@dataclass
class History:
    """Rounds of a federation: who took part, and their Gram matrix; some clients have no direction."""

    names: list[str]
    rounds: list[tuple[list[str], np.ndarray]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Few clients and many rounds, or the other way round; newcomers, absentees and clients that do not move."""
    names = draw(st.lists(st.text(max_size=4), min_size=1, max_size=12, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rounds = []
    for _ in range(draw(st.integers(0, 12))):
        keys = [names[i] for i in rng.permutation(len(names))[: rng.integers(len(names) + 1)]]
        vectors = rng.normal(size=(len(keys), 3)) * rng.choice([0.0, 1e-8, 1.0, 1e8], size=(len(keys), 1))
        rounds.append((keys, vectors @ vectors.T))
    return History(names, rounds)


ALPHAS = st.sampled_from([0.0, 0.3, 0.5, 1.0])
MEMORIES = st.none() | st.integers(1, 5)


def played(history: History, alpha: float, memory_rounds: int | None = None) -> SimilarityTable:
    table = SimilarityTable()
    for keys, gram in history.rounds:
        table = table.observed(keys, gram, alpha, memory_rounds=memory_rounds)
    return table


@settings(deadline=None)
@given(histories(), ALPHAS, MEMORIES)
def test_the_table_is_the_dense_one_after_every_round(history, alpha, memory_rounds):
    table, dense = SimilarityTable(), DenseTable(history.names, alpha, memory_rounds)
    for keys, gram in history.rounds:
        table = table.observed(keys, gram, alpha, memory_rounds=memory_rounds)
        dense.observe(keys, gram)
        np.testing.assert_array_equal(table.among(history.names), dense.values)
        assert len(table.pairs) == len(table.values) == len(table.last_seen) == dense.pairs()
        own = np.diagonal(dense.changed) > (-1 if memory_rounds is None else dense.rounds - memory_rounds)
        assert set(table.keys) == {name for name, known in zip(history.names, own, strict=True) if known}


@settings(deadline=None)
@given(histories(), ALPHAS, MEMORIES, st.randoms(use_true_random=False))
def test_the_order_of_the_clients_within_a_round_does_not_matter(history, alpha, memory_rounds, random):
    shuffled = []
    for keys, gram in history.rounds:
        order = random.sample(range(len(keys)), len(keys))
        shuffled.append(([keys[i] for i in order], gram[np.ix_(order, order)]))
    one, other = (played(History(history.names, rounds), alpha, memory_rounds) for rounds in (history.rounds, shuffled))
    np.testing.assert_array_equal(one.among(history.names), other.among(history.names))


@settings(deadline=None)
@given(histories(), ALPHAS, st.integers(0, 11))
def test_a_table_is_a_value_that_later_rounds_leave_alone(history, alpha, after):
    table = played(History(history.names, history.rounds[:after]), alpha, memory_rounds=2)
    before = table.among(history.names), table.keys, as_bytes(table)
    for keys, gram in history.rounds[after:]:
        table.observed(keys, gram, alpha, memory_rounds=1)
    np.testing.assert_array_equal(table.among(history.names), before[0])
    assert (table.keys, as_bytes(table)) == before[1:]


def test_similarities_are_looked_up_in_any_order_and_more_than_once():
    vectors = np.random.default_rng(0).normal(size=(5, 3))
    table = SimilarityTable().observed(list("abcde"), vectors @ vectors.T, alpha=0.0)
    whole = table.among(list("abcde"))
    np.testing.assert_array_equal(
        table.among(["d", "?", "b", "d"])[np.ix_([0, 2, 3], [0, 2, 3])], whole[[3, 1, 3]][:, [3, 1, 3]]
    )
    assert table.among([]).shape == SimilarityTable().among([]).shape == (0, 0)
    np.testing.assert_array_equal(SimilarityTable().among(["a", "b"]), np.zeros((2, 2)))


def test_what_is_forgotten_starts_again_from_zero():
    pair, alone = np.eye(2), np.eye(1)
    table = (
        SimilarityTable().observed(["a", "b"], pair, 0.5, memory_rounds=2).observed(["a"], alone, 0.5, memory_rounds=2)
    )
    assert table.keys == ("a", "b")  # seen in one of the last two rounds
    table = table.observed(["a"], alone, 0.5, memory_rounds=2)
    assert table.keys == ("a",)
    again = table.observed(["b", "a"], pair, 0.5, memory_rounds=2)
    np.testing.assert_array_equal(np.diagonal(again.among(["a", "b"])), [1 - 0.5**4, 0.5])


def test_a_round_in_which_nobody_moved_counts_as_a_round():
    table = SimilarityTable().observed(["a"], np.eye(1), 0.5, memory_rounds=1)
    assert table.observed(["b"], np.zeros((1, 1)), 0.5, memory_rounds=1).keys == ()
    assert table.observed([], np.zeros((0, 0)), 0.5, memory_rounds=1).keys == ()


def as_bytes(table: SimilarityTable) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in table.to_arrays().items()}


@settings(deadline=None)
@given(histories(), ALPHAS, MEMORIES)
def test_save_and_load_give_the_same_bytes_and_the_same_future(history, alpha, memory_rounds):
    table = played(history, alpha, memory_rounds)
    file = io.BytesIO()
    np.savez(file, **table.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        loaded = SimilarityTable.from_arrays(saved)
    assert loaded.keys == table.keys
    assert as_bytes(loaded) == as_bytes(table)
    for keys, gram in history.rounds:
        table, loaded = (one.observed(keys, gram, alpha, memory_rounds=2) for one in (table, loaded))
    assert as_bytes(loaded) == as_bytes(table)


@pytest.mark.parametrize("key", ["", "a\0", "\0", "Größe", "🌸", "x" * 10_000])
def test_any_key_comes_back(key):
    table = SimilarityTable().observed([key, "other"], np.eye(2), 0.5)
    assert SimilarityTable.from_arrays(table.to_arrays()).keys == (key, "other")


def test_what_is_saved_grows_with_the_pairs_that_met_and_not_with_the_clients_squared():
    table = SimilarityTable()
    for number in range(100):
        table = table.observed([f"{10 * number + i:09d}" for i in range(10)], np.eye(10), 0.5)
    saved = sum(array.nbytes for array in table.to_arrays().values())
    assert saved == 100 * 55 * 20 + 1000 * (9 + 8) + 8  # pairs, keys with their lengths, the count of rounds


def changed(name: str, value: object) -> dict[str, np.ndarray]:
    vectors = np.random.default_rng(0).normal(size=(3, 2))
    arrays = SimilarityTable().observed(list("abc"), vectors @ vectors.T, 0.5).to_arrays()
    return {**arrays, name: np.asarray(value, dtype=arrays[name].dtype)}


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (changed("key_lengths", [1, 1, 2]), "lengths of strings that add up to 3, found 4"),
        (changed("key_lengths", [-1, 2, 2]), "lengths of strings that add up to 3"),
        (changed("key_lengths", [1, 2]), r"pairs: expected ordered places of the keys"),
        (changed("key_lengths", [1, 1, 1, 0]), r"pairs: expected every client's pair with itself"),
        (changed("keys", [255, 98, 99]), "strings in UTF-8"),
        (changed("keys", [97, 97, 99]), "keys: expected distinct keys"),
        (changed("pairs", [1, 0, 2, 3, 4, 5]), "pairs: expected rising numbers"),
        (changed("pairs", [-1, 0, 1, 2, 3, 4]), "pairs: expected ordered places"),
        (changed("pairs", [0, 1, 2, (1 << 32) + 1, (2 << 32) + 1, (2 << 32) + 2]), "pairs: expected ordered places"),
        (changed("pairs", [0, 1, 2]), "one length, found shapes"),
        (changed("values", [0.5, 0.5, 0.5, 0.5, 0.5, 1.5]), r"values: expected numbers in \[-1, 1\]"),
        (changed("values", [np.nan] * 6), r"values: expected numbers in \[-1, 1\]"),
        (changed("values", np.zeros((6, 1))), "values: expected an array of float64 with 1 dimensions, found"),
        (changed("values", np.zeros(5)), "one length, found shapes"),
        (changed("last_seen", [1, 1, 1, 1, 1, 2]), "last_seen: expected past observations"),
        (changed("last_seen", [0, 1, 1, 1, 1, 1]), "last_seen: expected past observations"),
        (
            changed("observations", [1]),
            "observations: .* int64 with 0 dimensions, found int64 with 1",
        ),
        ({"keys": np.zeros(0)}, "missing key_lengths, pairs, values, last_seen, observations"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused_by_name(arrays, text):
    with pytest.raises(ValueError, match=text):
        SimilarityTable.from_arrays(arrays)


@pytest.mark.parametrize(
    ("keys", "size", "text"),
    [(["a"], 2, r"expected 1 distinct keys .* shape \(2, 2\)"), (["a", "a"], 2, "found 1 distinct keys")],
)
def test_keys_and_gram_must_fit(keys, size, text):
    with pytest.raises(ValueError, match=text):
        SimilarityTable().observed(keys, np.eye(size), 0.5)


def test_a_population_of_a_million_costs_what_took_part_and_no_more():
    """Memory is measured, as a bound on what is touched: the square of the clients would be 8 TB."""
    keys = [f"client-{i:07d}" for i in range(1_000_000)]
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20, 4))
    selector, table = ConsensusSelection(), SimilarityTable()
    tracemalloc.start()
    for number in range(3):
        chosen = selector.choose(keys, 20, table=table, rng=np.random.default_rng(number))
        table = selector.observe(table, chosen.keys, vectors @ vectors.T)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table.keys) <= 60
    assert len(table.pairs) <= 3 * 210
    assert peak < 64 * 2**20
