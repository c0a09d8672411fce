import tracemalloc

import numpy as np
import pytest

from fedcome_flwr.core import ClientUpdate, gram
from fedcome_flwr.core.gram import apply_combination, gram_matrix
from tests.unit.core._updates import PARAMETERS, model, stacked, trained


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("block_bytes", [1, 8 * 5 * 4, gram._BLOCK_BYTES])
def test_gram_and_combination_equal_the_dense_ones(dtype, block_bytes, monkeypatch):
    monkeypatch.setattr(gram, "_BLOCK_BYTES", block_bytes)
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
