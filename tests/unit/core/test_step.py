import pytest

from fedcome_flwr.core.step import SMALLEST_STEP, next_step

LAST = {"a": 1.0, "b": 2.0}
WEIGHTS = {"a": 0.5, "b": 0.5, "c": 0.5}


@pytest.mark.parametrize(
    ("step", "losses", "expected"),
    [
        (1.0, {"a": 1.0, "b": 2.0}, 1.0),
        (1.0, {"a": 1.0, "b": 2.31}, 0.5),  # 3.31 > 1.1 · 3
        (1.0, {"a": 1.3, "b": 1.9}, 1.0),  # one rises, the weighted sum stays within a tenth
        (0.5, {"a": 0.9, "b": 1.9}, 0.55),
        (0.95, {"a": 0.9, "b": 1.9}, 1.0),
        (0.06, {"a": 9.0, "b": 9.0}, SMALLEST_STEP),
        (0.8, {"c": 5.0}, 0.8),  # nobody to compare with
        (0.8, {}, 0.8),
        (1.0, {"a": float("nan"), "b": 1.0}, 0.5),
        (1.0, {"a": float("inf")}, 0.5),
        (1.0, {"a": 1.05, "c": 100.0}, 1.0),  # newcomers are not compared
    ],
)
def test_the_step_halves_on_a_rise_above_a_tenth_and_else_grows(step, losses, expected):
    assert next_step(step, losses, LAST, WEIGHTS) == pytest.approx(expected)


def test_negative_losses_rise_and_fall_as_others_do():
    assert next_step(0.5, {"a": -2.2}, {"a": -2.0}, WEIGHTS) == pytest.approx(0.55)
    assert next_step(0.5, {"a": -1.9}, {"a": -2.0}, WEIGHTS) == pytest.approx(0.55)
    assert next_step(0.5, {"a": -1.7}, {"a": -2.0}, WEIGHTS) == 0.25


def test_the_losses_are_weighted():
    assert next_step(1.0, {"a": 2.0, "b": 1.5}, LAST, {"a": 0.9, "b": 0.1}) == 0.5
    assert next_step(1.0, {"a": 2.0, "b": 1.5}, LAST, {"a": 0.1, "b": 0.9}) == 1.0
