import numpy as np
import pytest

from fedcome_flwr.core import ClientMemory, LocalRule
from fedcome_flwr.core.local_rule import correction, moved

GRADIENT = {"w": np.array([1.0, -2.0], dtype=np.float32)}
CONTROL = {"w": np.array([0.5, 0.25])}
BEFORE = ClientMemory({"w": np.array([10.0, 20.0])}, {"w": np.array([3.0, 4.0])})


def test_a_rule_says_whether_clients_remember():
    assert not LocalRule(pull=1.0).has_memory
    assert LocalRule(drift=True).has_memory
    assert LocalRule(control=True).has_memory


@pytest.mark.parametrize("pull", [-1e-9, float("nan"), float("inf")])
def test_a_bad_pull_is_refused(pull):
    with pytest.raises(ValueError, match="pull: expected"):
        LocalRule(pull=pull)


def test_the_correction_has_what_the_rule_names():
    full = correction(LocalRule(0.1, drift=True, control=True), BEFORE, CONTROL)
    assert full.pull == 0.1
    np.testing.assert_array_equal(full.drift["w"], [10, 20])
    np.testing.assert_array_equal(full.shift["w"], [0.5 - 3, 0.25 - 4])
    empty = correction(LocalRule(0.1), BEFORE, CONTROL)
    assert (empty.drift, empty.shift) == ({}, {})


def test_a_fresh_memory_is_zero():
    found = correction(LocalRule(control=True), ClientMemory(), CONTROL)
    np.testing.assert_array_equal(found.shift["w"], CONTROL["w"])


def test_memory_moves_by_what_was_sent():
    rule = LocalRule(0.1, drift=True, control=True)
    after = moved(rule, BEFORE, GRADIENT, CONTROL, 0.5)
    np.testing.assert_array_equal(after.drift["w"], [9, 22])
    np.testing.assert_array_equal(after.control["w"], [3 - 0.5 + 2, 4 - 0.25 - 4])
    assert after.drift["w"].dtype == after.control["w"].dtype == np.float32


def test_only_what_the_rule_remembers_moves():
    drift = moved(LocalRule(drift=True), ClientMemory(), GRADIENT, {}, 0.0)
    assert drift.control == {}
    np.testing.assert_array_equal(drift.drift["w"], [-1, 2])
    assert moved(LocalRule(control=True), ClientMemory(), GRADIENT, CONTROL, 1.0).drift == {}
