"""The code of docs/weighting.md, as it stands there."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcome_flwr.core import (
    ClientUpdate,
    Cohort,
    Consensus,
    EqualStep,
    FairProjection,
    Mean,
    ServerState,
    UniformSelection,
    aggregate_round,
)

PAGE = Path(__file__).parents[3] / "docs" / "weighting.md"


def page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    pytest.importorskip("flwr")
    return page()


def weightings(names: dict[str, Any]) -> list[Any]:
    own = [names["LossWeights"](), names["LossWeights"](0.0), names["Minimax"](), names["Minimax"](10.0)]
    return [*own, Mean(), Consensus(), Consensus(influence_limit=0.3), EqualStep(), FairProjection()]


@pytest.mark.parametrize("check", ["check_permutation", "check_units", "check_nothing_learnt", "check_alone"])
@pytest.mark.parametrize("number", range(9))
def test_the_pages_properties_hold(names, check, number):
    names[check](weightings(names)[number])


def test_the_checks_can_fail(names):
    class FirstOnly:
        def weigh(self, gram, cohort):
            return names["Combination"](np.eye(len(gram))[0])

    class Unnormalised:
        def weigh(self, gram, cohort):
            return names["Combination"](1 / np.diagonal(gram))

    with pytest.raises(AssertionError):
        names["check_permutation"](FirstOnly())
    with pytest.raises(AssertionError):
        names["check_units"](Unnormalised())
    with pytest.raises(AssertionError), np.errstate(divide="ignore"):
        names["check_nothing_learnt"](Unnormalised())


def test_larger_losses_count_more(names):
    cohort = Cohort(["a", "b", "c"], np.full(3, 1 / 3), np.array([1.0, 2.0, 4.0]))
    found = names["LossWeights"](2.0).weigh(np.eye(3), cohort).coefficients
    np.testing.assert_allclose(found, np.array([1, 4, 16]) / 21)
    np.testing.assert_allclose(names["Minimax"](1e-9).weigh(np.eye(3), cohort).coefficients, 1 / 3, atol=1e-8)
    np.testing.assert_allclose(names["Minimax"](10.0).weigh(np.eye(3), cohort).coefficients, [0, 0, 1])
    middle = names["Minimax"](0.1).weigh(np.eye(3), cohort).coefficients
    assert middle.sum() == pytest.approx(1)
    np.testing.assert_allclose(np.diff(middle), [0.1, 0.2])


def test_the_method_plays_a_round_and_misses_losses_by_name(names):
    reference = {"w": np.zeros(2)}
    updates = [
        ClientUpdate("a", {"w": np.array([1.0, 0.0])}, 10, metrics={"train-loss": 1.0}),
        ClientUpdate("b", {"w": np.array([0.0, 1.0])}, 10, metrics={"train-loss": 2.0}),
        ClientUpdate("c", {"w": np.array([5.0, 5.0])}, 10),
    ]
    outcome = aggregate_round(ServerState(), reference, updates, names["method"], selector=UniformSelection())
    np.testing.assert_allclose(outcome.arrays["w"], [0.2, 0.8])
    assert outcome.report.left_out["c"].startswith("q-ffl needs the metric 'train-loss'")
