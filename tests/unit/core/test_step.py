import pytest

from fedcome_flwr.core.step import SMALLEST_STEP, next_step

LAST = {"a": 1.0, "b": 2.0}
WEIGHTS = {"a": 0.5, "b": 0.5, "c": 0.5}


@pytest.mark.parametrize(
    ("step", "losses", "expected"),
    [
        (1.0, {"a": 1.0, "b": 2.0}, 1.0),
        (1.0, {"a": 1.11, "b": 2.21}, 0.5),
        (1.0, {"a": 1.09, "b": 2.19}, 1.0),  # within a tenth
        (1.0, {"a": 1e30, "b": 1.9}, 1.0),  # half of the weight is not more than half
        (0.5, {"a": 0.9, "b": 1.9}, 0.55),
        (0.95, {"a": 0.9, "b": 1.9}, 1.0),
        (0.06, {"a": 9.0, "b": 9.0}, SMALLEST_STEP),
        (0.8, {"c": 5.0}, 0.8),  # nobody to compare with
        (0.8, {}, 0.8),
        (1.0, {"a": float("nan"), "b": float("inf")}, 0.5),
        (1.0, {"a": float("nan"), "b": 1.0}, 1.0),
        (1.0, {"a": float("inf")}, 0.5),
        (1.0, {"a": 1.05, "c": 100.0}, 1.0),  # newcomers are not compared
    ],
)
def test_the_step_halves_on_a_rise_above_a_tenth_and_else_grows(step, losses, expected):
    assert next_step(step, losses, LAST, WEIGHTS) == pytest.approx(expected)


@pytest.mark.parametrize("lie", [float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 0.0])
@pytest.mark.parametrize("before", [1e308, -1e308, 0.0, 1.0])
def test_fewer_than_half_of_the_weight_decide_nothing(lie, before):
    keys = [*"abcde"]
    last, weights = dict.fromkeys(keys, 2.0) | {"a": before, "b": before}, dict.fromkeys(keys, 0.2)
    for loss, expected in ((1.9, 0.55), (2.3, 0.25)):  # what the other three say
        losses = dict.fromkeys(keys, loss) | {"a": lie, "b": lie}
        assert next_step(0.5, losses, last, weights) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("losses", "just_trained", "expected"),
    [
        ({"a": 1.03, "b": 2.06}, {"a", "b"}, 0.5),
        ({"a": 1.01, "b": 2.03}, {"a", "b"}, 1.0),  # within 2 %
        ({"a": 1.03, "b": 2.06}, {"a"}, 1.0),  # b was away, half of the weight is not more than half
        ({"a": 1.03, "b": 2.3}, {"a"}, 0.5),
        ({"a": 1.03, "b": 2.06}, {"c"}, 1.0),
    ],
)
def test_who_took_part_in_the_last_round_may_rise_by_two_percent(losses, just_trained, expected):
    assert next_step(1.0, losses, LAST, WEIGHTS, just_trained=just_trained) == expected


def test_negative_losses_rise_and_fall_as_others_do():
    assert next_step(0.5, {"a": -2.2}, {"a": -2.0}, WEIGHTS) == pytest.approx(0.55)
    assert next_step(0.5, {"a": -1.9}, {"a": -2.0}, WEIGHTS) == pytest.approx(0.55)
    assert next_step(0.5, {"a": -1.7}, {"a": -2.0}, WEIGHTS) == 0.25


def test_the_losses_are_weighted():
    assert next_step(1.0, {"a": 2.0, "b": 1.5}, LAST, {"a": 0.9, "b": 0.1}) == 0.5
    assert next_step(1.0, {"a": 2.0, "b": 1.5}, LAST, {"a": 0.1, "b": 0.9}) == 1.0
