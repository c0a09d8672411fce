import tracemalloc

import numpy as np
import pytest

from fedcome_flwr.core import ClientUpdate, gram
from fedcome_flwr.core.gram import apply_combination, gram_matrix
from tests.unit.core._updates import PARAMETERS, model, stacked, trained


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("widest", [1, 5, gram._WIDEST])
def test_gram_and_combination_equal_the_dense_ones(dtype, widest, monkeypatch):
    monkeypatch.setattr(gram, "_WIDEST", widest)
    reference = model(dtype)
    updates = [trained(reference, str(i), i) for i in range(5)]
    dense = stacked(reference, updates)
    np.testing.assert_allclose(gram_matrix(reference, updates, PARAMETERS), dense @ dense.T, rtol=1e-13)
    coefficients = np.linspace(-1, 1, 5)
    new = apply_combination(reference, updates, PARAMETERS, coefficients)
    flat = np.concatenate([reference[name].astype(float).ravel() for name in PARAMETERS]) - coefficients @ dense
    assert [new[name].dtype for name in PARAMETERS] == [dtype] * 2
    assert [new[name].shape for name in PARAMETERS] == [(4, 3), ()]
    tolerance = 2 * float(np.finfo(dtype).eps)
    found = np.concatenate([new[n].ravel() for n in PARAMETERS]).astype(float)
    np.testing.assert_allclose(found, flat, rtol=tolerance, atol=tolerance)


def many_clients(count: int, size: int) -> tuple[dict[str, np.ndarray], list[ClientUpdate], np.ndarray]:
    """A model in three arrays, clients around it, and their pseudo-gradients as rows."""
    rng = np.random.default_rng(count)

    def cut(values: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip("abc", np.split(values, [size // 3, size // 3 + 1]), strict=True))

    centre = rng.normal(size=size).astype("float32")
    values = centre + rng.normal(size=(count, size)).astype("float32")
    updates = [ClientUpdate(f"{i:03d}", cut(row), 1) for i, row in enumerate(values)]
    return cut(centre), updates, centre.astype(float) - values.astype(float)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 70])
@pytest.mark.parametrize("size", [1, 255, 5000, 40_000])
def test_any_number_of_clients_and_any_size_give_the_dense_gram_matrix(count, size):
    reference, updates, dense = many_clients(count, size)
    found = gram_matrix(reference, updates, tuple("abc"))
    np.testing.assert_allclose(found, dense @ dense.T, rtol=1e-12, atol=1e-12 * size)
    np.testing.assert_array_equal(found, found.T)


def test_without_clients_the_gram_matrix_is_empty():
    assert gram_matrix(model(), [], PARAMETERS).shape == (0, 0)


@pytest.mark.parametrize("count", [1, 10, 40])
def test_the_number_of_threads_does_not_show_in_the_bytes(count, monkeypatch):
    monkeypatch.setattr(gram, "_WIDEST", 64)  # many blocks
    reference, updates, _ = many_clients(count, 10_000)
    results = []
    for threads in (1, 2, 5, 64):
        monkeypatch.setattr(gram, "_processors", lambda threads=threads: threads)
        new = apply_combination(reference, updates, tuple("abc"), np.linspace(-1, 1, count))
        results.append((gram_matrix(reference, updates, tuple("abc")).tobytes(), [new[n].tobytes() for n in "abc"]))
    assert all(result == results[0] for result in results)


def test_threads_ignore_overflow_of_values_that_are_found_later(monkeypatch):
    monkeypatch.setattr(gram, "_processors", lambda: 4)
    monkeypatch.setattr(gram, "_WIDEST", 2)
    update = ClientUpdate("a", {"w": np.full(9, 1e200)}, 1)
    found = gram_matrix({"w": np.zeros(9)}, [update, ClientUpdate("b", {"w": np.ones(9)}, 1)], ("w",))
    assert np.isinf(found[0, 0])
    assert found[1, 1] == 9


def test_a_pseudo_gradient_reply_means_the_same_as_a_model_reply():
    reference = model("float64")
    updates = [trained(reference, str(i), i) for i in range(3)]
    differences = [
        ClientUpdate(u.key, {n: reference[n] - u.arrays[n] for n in PARAMETERS}, 1, kind="pseudo-gradient")
        for u in updates
    ]
    np.testing.assert_array_equal(
        gram_matrix(reference, updates, PARAMETERS), gram_matrix(reference, differences, PARAMETERS)
    )


def test_layout_in_memory_does_not_matter():
    reference = {"w": np.asfortranarray(np.arange(12.0).reshape(3, 4))}
    values = np.random.default_rng(0).normal(size=(3, 4))
    layouts = [np.ascontiguousarray(values), np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2]]
    found = gram_matrix(reference, [ClientUpdate(str(i), {"w": a}, 1) for i, a in enumerate(layouts)], ("w",))
    np.testing.assert_array_equal(found, np.full((3, 3), found[0, 0]))
    new = apply_combination(reference, [ClientUpdate("0", {"w": layouts[2]}, 1)], ("w",), np.ones(1))
    np.testing.assert_allclose(new["w"], values, atol=1e-14)


def test_a_non_finite_client_spoils_no_other_product():
    reference = {"w": np.zeros(50, dtype="float32")}
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=50).astype("float32") for _ in range(6)]
    clean = gram_matrix(reference, [ClientUpdate(str(i), {"w": a}, 1) for i, a in enumerate(arrays)], ("w",))
    arrays[2] = arrays[2].copy()
    arrays[2][7] = np.nan
    spoilt = gram_matrix(reference, [ClientUpdate(str(i), {"w": a}, 1) for i, a in enumerate(arrays)], ("w",))
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(spoilt[np.ix_(others, others)], clean[np.ix_(others, others)])
    assert np.isnan(spoilt[2, 2])


def test_an_overflow_of_the_model_type_is_named():
    reference = {"w": np.full(3, 6e4, dtype="float16")}
    update = ClientUpdate("a", {"w": np.full(3, 6.1e4, dtype="float16")}, 1)
    with pytest.raises(OverflowError, match=r"'w'.*float16"):
        apply_combination(reference, [update], ("w",), np.array([10.0]))


def test_memory_beyond_the_replies_stays_within_two_models_and_64_mib():
    size, clients = 3_000_000, 12
    reference = {"w": np.zeros(size, dtype="float32"), "b": np.zeros(5, dtype="float32")}
    rng = np.random.default_rng(0)
    updates = [
        ClientUpdate(str(i), {"w": rng.random(size, dtype="float32"), "b": np.ones(5, dtype="float32")}, 1)
        for i in range(clients)
    ]
    tracemalloc.start()
    gram_matrix(reference, updates, ("w", "b"))
    apply_combination(reference, updates, ("w", "b"), np.full(clients, 1 / clients))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 2 * 4 * size + 64 * 2**20
    assert peak < clients * 4 * size  # never clients × parameters, which would hide below the bound for few clients
