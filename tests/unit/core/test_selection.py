import itertools

import numpy as np
import pytest

from fedcome_flwr.core import ConsensusSelection, Selection, SimilarityTable, UniformSelection
from fedcome_flwr.core.selection import swap_energy

SELECTORS = [UniformSelection(), ConsensusSelection(), ConsensusSelection(mu=1.0), ConsensusSelection(mu=0.0)]


def names(count: int) -> list[str]:
    return [f"client-{index}" for index in range(count)]


def random_table(count: int, seed: int = 0) -> SimilarityTable:
    """Cosines of random vectors in few dimensions: similarities of both signs, diagonal 1."""
    vectors = np.random.default_rng(seed).normal(size=(count, 4))
    return SimilarityTable().observed(names(count), vectors @ vectors.T, alpha=0.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng((seed, 1))


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize(("present", "count"), [(10, 3), (10, 10), (10, 1), (10, 0), (3, 5), (1, 1), (0, 2), (0, 0)])
def test_as_many_as_asked_or_all_that_are_there(selector, present, count):
    chosen = selector.choose(names(present), count, table=random_table(10), rng=rng())
    assert len(chosen.keys) == len(set(chosen.keys)) == min(count, present)
    assert set(chosen.keys) <= set(names(present))
    assert set(chosen.annealed) <= set(chosen.keys)


@pytest.mark.parametrize("selector", SELECTORS)
def test_the_order_of_the_clients_does_not_matter_and_the_generator_does(selector):
    table = random_table(20)
    one = selector.choose(names(20), 6, table=table, rng=rng())
    assert one == selector.choose(names(20)[::-1], 6, table=table, rng=rng())
    others = {selector.choose(names(20), 6, table=table, rng=rng(seed)).keys for seed in range(5)}
    assert len(others) > 1 or selector == ConsensusSelection(mu=1.0)  # annealing may find the one best set


@pytest.mark.parametrize(("mu", "count", "seats"), [(0.7, 10, 7), (0.7, 1, 0), (1.0, 10, 10), (0.29, 100, 29)])
def test_a_share_mu_is_annealed_rounding_down(mu, count, seats):
    chosen = ConsensusSelection(mu=mu).choose(names(120), count, table=random_table(120), rng=rng())
    assert len(chosen.annealed) == seats


def test_the_energy_counts_ordered_pairs_and_the_diagonal():
    table = random_table(8)
    chosen = ConsensusSelection(mu=1.0).choose(names(8), 3, table=table, rng=rng())
    similarity = table.among(chosen.annealed)
    assert chosen.energy == pytest.approx(sum(similarity[i, j] for i in range(3) for j in range(3)))


@pytest.mark.parametrize("seed", range(5))
def test_the_change_of_a_swap_is_the_difference_of_energies(seed):
    similarity = random_table(9, seed).among(names(9))
    inside = rng(seed).permutation(9)[:4]
    outside = np.setdiff1d(np.arange(9), inside)
    for place, entering in itertools.product(range(4), outside):
        after = inside.copy()
        after[place] = entering
        difference = similarity[np.ix_(after, after)].sum() - similarity[np.ix_(inside, inside)].sum()
        assert swap_energy(similarity, inside, inside[place], entering) == pytest.approx(difference, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_annealing_finds_a_set_among_the_best_twentieth(seed):
    table = random_table(12, seed)
    energies = sorted(
        table.among([names(12)[i] for i in chosen]).sum() for chosen in itertools.combinations(range(12), 4)
    )
    found = ConsensusSelection(mu=1.0).choose(names(12), 4, table=table, rng=rng(seed))
    assert found.energy <= energies[24] + 1e-12  # of 495


def annealed_on_all(selector: ConsensusSelection, table: SimilarityTable, keys: list[str], seats: int, seed: int):
    """The annealing written down plainly, on the similarities of all clients: the reference."""
    generator, similarity = rng(seed), table.among(keys)
    order = generator.permutation(len(keys))
    inside, outside = list(order[:seats]), list(order[seats:])
    leaving = generator.integers(seats, size=selector.iterations)
    entering = generator.integers(len(outside), size=selector.iterations)
    chances = 1 - generator.random(selector.iterations)
    temperature, best = selector.initial_temperature, list(inside)

    def energy(members: list[int]) -> float:
        return float(sum(similarity[i, j] for i in members for j in members))

    for out, into, chance in zip(leaving, entering, chances, strict=True):
        after = [*inside[:out], outside[into], *inside[out + 1 :]]
        change = energy(after) - energy(inside)
        if change <= 0 or np.log(chance) < -change / temperature:
            inside[out], outside[into] = outside[into], inside[out]
            best = list(inside) if energy(inside) < energy(best) - 1e-12 else best
        temperature *= selector.decay
    return tuple(sorted(keys[i] for i in best)), energy(best)


@pytest.mark.parametrize(("present", "seats", "known"), [(9, 3, 9), (12, 5, 12), (60, 4, 30), (300, 6, 40)])
def test_looking_up_only_the_proposed_clients_is_annealing_on_all(present, seats, known):
    selector = ConsensusSelection(mu=1.0, iterations=40)
    for seed in range(5):
        table = random_table(known, seed)
        keys, energy = annealed_on_all(selector, table, sorted(names(present)), seats, seed)
        found = selector.choose(names(present), seats, table=table, rng=rng(seed))
        assert found.annealed == keys
        assert found.energy == pytest.approx(energy, abs=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0])
def test_the_energy_is_that_of_the_annealed_clients(mu):
    for seed in range(5):
        table = random_table(20, seed)
        chosen = ConsensusSelection(mu=mu).choose(names(30), 7, table=table, rng=rng(seed))
        every = table.among(names(30))
        rows = [names(30).index(key) for key in chosen.annealed]
        assert chosen.energy == pytest.approx(sum(every[i, j] for i in rows for j in rows), abs=1e-12)


def test_one_seed_gives_the_same_bytes():
    def run() -> tuple[list[Selection], dict[str, bytes]]:
        selector, table, chosen = ConsensusSelection(memory_rounds=5), SimilarityTable(), []
        vectors = np.random.default_rng(0).normal(size=(50, 4))
        for number in range(20):
            chosen.append(selector.choose(names(50), 10, table=table, rng=np.random.default_rng((7, number))))
            rows = vectors[[int(key.split("-")[1]) for key in chosen[-1].keys]]
            table = selector.observe(table, chosen[-1].keys, rows @ rows.T)
        return chosen, {name: array.tobytes() for name, array in table.to_arrays().items()}

    assert run() == run()


def test_pairs_that_did_not_meet_of_late_are_forgotten():
    selector, table = ConsensusSelection(memory_rounds=2), SimilarityTable()
    for keys in (["a", "b"], ["c"], ["c"]):
        table = selector.observe(table, keys, np.eye(len(keys)))
    assert table.keys == ("c",)
    assert ConsensusSelection().observe(table, ["d"], np.eye(1)).keys == ("c", "d")


def test_similar_clients_are_not_chosen_together():
    vectors = np.repeat(np.eye(5), 4, axis=0)  # five kinds of clients, four of each
    table = SimilarityTable().observed(names(20), vectors @ vectors.T, alpha=0.0)
    chosen = ConsensusSelection(mu=1.0).choose(names(20), 5, table=table, rng=rng())
    assert len({int(key.split("-")[1]) // 4 for key in chosen.keys}) == 5


def test_newcomers_get_at_least_their_fair_share_of_annealed_seats():
    """100 clients in ten clusters; 20 more join; ten rounds at 10 % with the real dynamics of the table.

    The diagonal makes the difference: without it unseen pairs, at 0, look more similar than real pairs, whose
    median cosine is negative.
    """
    generator = np.random.default_rng(3)
    centres = generator.normal(size=(10, 10))
    centres -= centres.mean(axis=0)  # the kinds conflict: cosines between them are negative on average
    kinds = np.arange(120) % 10
    selector, table = ConsensusSelection(), SimilarityTable()
    keys = np.array([f"client-{index:03d}" for index in range(120)])

    def run(rounds: range, present: np.ndarray, table: SimilarityTable) -> tuple[SimilarityTable, list[str]]:
        annealed: list[str] = []
        for number in rounds:
            chosen = selector.choose(
                list(present), len(present) // 10, table=table, rng=np.random.default_rng((0, number))
            )
            rows = [int(key.split("-")[1]) for key in chosen.keys]
            vectors = centres[kinds[rows]] + 0.3 * generator.normal(size=(len(rows), 10))
            table = selector.observe(table, chosen.keys, vectors @ vectors.T)
            annealed += chosen.annealed
        return table, annealed

    table, _ = run(range(60), keys[:100], table)
    _, annealed = run(range(60, 70), keys, table)
    newcomers = sum(key >= "client-100" for key in annealed)
    assert newcomers / len(annealed) >= 20 / 120


def test_every_client_is_equally_likely_under_uniform_selection():
    counts = dict.fromkeys(names(10), 0)
    for seed in range(2000):
        for key in UniformSelection().choose(names(10), 3, table=SimilarityTable(), rng=rng(seed)).keys:
            counts[key] += 1
    np.testing.assert_allclose(np.array(list(counts.values())) / 2000, 0.3, atol=0.05)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"mu": 1.1}, r"mu: expected a number in \[0, 1\], found 1.1"),
        ({"mu": float("nan")}, "mu: expected"),
        ({"alpha": -0.1}, r"alpha: expected a number in \[0, 1\], found -0.1"),
        ({"iterations": -1}, "iterations: expected at least 0, found -1"),
        ({"initial_temperature": 0.0}, "initial_temperature: expected a positive number, found 0.0"),
        ({"memory_rounds": 0}, "memory_rounds: expected at least 1, found 0"),
        ({"decay": 1.5}, r"decay: expected a number in \(0, 1\], found 1.5"),
    ],
)
def test_bad_settings_are_named(setting, text):
    with pytest.raises(ValueError, match=text):
        ConsensusSelection(**setting)
