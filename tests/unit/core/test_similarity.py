import numpy as np
import pytest

from fedcome_flwr.core import SimilarityTable


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
    np.testing.assert_array_equal(table.values, np.eye(2))


def test_zero_pseudo_gradients_leave_their_entries_as_they_are():
    table = SimilarityTable().observed(["a", "b"], np.ones((2, 2)), alpha=0.5)
    after = table.observed(["a", "b"], np.array([[0.0, 0.0], [0.0, 1.0]]), alpha=0.5)
    np.testing.assert_allclose(after.among(["a", "b"]), [[0.5, 0.5], [0.5, 0.75]])


@pytest.mark.parametrize("scale", [1e-150, 1e-20, 1.0, 1e20, 1e150])
def test_only_directions_count(scale):
    gram = scale * np.array([[2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(SimilarityTable().observed(["a", "b"], gram, 0.0).values, [[1, 0.5], [0.5, 1]])


def test_keys_and_values_must_fit():
    with pytest.raises(ValueError, match=r"\(1, 1\) for 1 keys, found \(2, 2\)"):
        SimilarityTable(("a",), np.zeros((2, 2)))
