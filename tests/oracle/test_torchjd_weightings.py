"""TorchJD's Gramian weightings as ours: the waist is the same, Gram matrix in and coefficients out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchjd", reason="other weightings through the same waist")

import torch
from torchjd.aggregation import DualProjWeighting, MeanWeighting, MGDAWeighting, PCGradWeighting, UPGradWeighting

from fedcome_flwr.core import ClientUpdate, Cohort, Combination, ServerState, UniformSelection, aggregate_round, fedcome
from fedcome_flwr.core.methods import Method


@dataclass(frozen=True)
class TorchJD:
    """Any of TorchJD's Gramian weightings."""

    weighting: Any

    def weigh(self, gram: np.ndarray, cohort: Cohort) -> Combination:
        return Combination(self.weighting(torch.from_numpy(gram)).numpy())


def updates(seed: int) -> list[ClientUpdate]:
    vectors = np.random.default_rng(seed).normal(size=(6, 9))
    return [ClientUpdate(f"{number}", {"w": vector}, 1) for number, vector in enumerate(vectors)]


def play(method: Method, seed: int) -> Any:
    return aggregate_round(ServerState(), {"w": np.zeros(9)}, updates(seed), method, selector=UniformSelection())


@pytest.mark.parametrize("weighting", [MeanWeighting(), MGDAWeighting(), DualProjWeighting(), PCGradWeighting()])
def test_each_plays_a_round(weighting: Any) -> None:
    outcome = play(Method("torchjd", TorchJD(weighting), client_weights="uniform"), 0)
    gradients = -np.array([update.arrays["w"] for update in updates(0)])
    expected = weighting(torch.from_numpy(gradients @ gradients.T)).numpy() @ gradients
    if not isinstance(weighting, PCGradWeighting):  # draws its order anew
        np.testing.assert_allclose(outcome.arrays["w"], -expected, atol=1e-9)
    assert np.isfinite(outcome.arrays["w"]).all()


@pytest.mark.parametrize("seed", range(5))
def test_upgrad_is_fedcome_with_uniform_weights(seed: int) -> None:
    linalg = pytest.importorskip("torchjd.linalg")
    pytest.importorskip("quadprog", reason="TorchJD's solver")
    weighting = UPGradWeighting(projector=linalg.QuadprogProjector(norm_eps=0.0, reg_eps=1e-12))
    theirs = play(Method("upgrad", TorchJD(weighting), client_weights="uniform"), seed)
    ours = play(fedcome("uniform", server_step=1.0), seed)
    np.testing.assert_allclose(theirs.arrays["w"], ours.arrays["w"], atol=1e-5)
