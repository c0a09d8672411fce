"""Flower's privacy mods under our strategies: what works, and what a user sees where it cannot."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.client.mod import adaptiveclipping_mod as numpy_adaptiveclipping_mod
from flwr.client.mod import fixedclipping_mod as numpy_fixedclipping_mod
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod

from fedcome_flwr import FedCOMEStrategy, UniformSelection, UpdateStrategy, scaffold
from fedcome_flwr.client import FedCOMEClient, client_app, model_arrays
from fedcome_flwr.core import solve_consensus
from fedcome_flwr.simulation import InlineGrid
from tests.unit.client._federation import STEP, own_data, record
from tests.unit.client._models import linear

CLIP = 0.05  # well below the pseudo-gradients' norms, which are about 0.16
NODES = 3
ADAPTIVE = {"noise_multiplier": 0.1, "num_sampled_clients": NODES, "initial_clipping_norm": CLIP}
FIXED = {"noise_multiplier": 0.01, "num_sampled_clients": NODES, "clipping_norm": CLIP}
MESSAGE_MODS = {
    "fixed": (fixedclipping_mod, lambda s: DifferentialPrivacyClientSideFixedClipping(s, **FIXED)),
    "adaptive": (adaptiveclipping_mod, lambda s: DifferentialPrivacyClientSideAdaptiveClipping(s, **ADAPTIVE)),
}
SERVER_SIDE = {
    "fixed": lambda s: DifferentialPrivacyServerSideFixedClipping(s, **FIXED),
    "adaptive": lambda s: DifferentialPrivacyServerSideAdaptiveClipping(s, **ADAPTIVE),
}


def strategy_and_reports(**options):
    reports = []
    strategy = FedCOMEStrategy(fraction_train=1.0, on_round=lambda report: reports.append(report), **options)
    return strategy, reports


def play(app, strategy, *, rounds=2, **config):
    np.random.seed(0)  # noqa: NPY002 - Flower draws its noise from the global generator
    with InlineGrid(app, NODES) as grid:
        return strategy.start(
            grid=grid,
            initial_arrays=record(model_arrays(linear())),
            num_rounds=rounds,
            train_config=ConfigRecord(config),
        )


def assert_clean(reports, rounds=2):
    assert [report.round for report in reports] == list(range(1, rounds + 1))
    for report in reports:
        assert report.clients == ("0", "1", "2")
        assert not report.left_out
        assert not report.evaluation_left_out
        assert report.certified


@pytest.mark.parametrize("name", MESSAGE_MODS)
def test_clipping_on_clients_works_with_flowers_wrapper(name):
    mod, wrap = MESSAGE_MODS[name]
    strategy, reports = strategy_and_reports()
    result = play(client_app(linear, own_data, mods=[mod], **STEP), wrap(strategy))
    assert_clean(reports)
    # Every pseudo-gradient was cut to the clipping norm, and no mean of projections is longer than the longest.
    assert 0 < reports[0].direction_norm <= CLIP * (1 + 1e-5)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2]


def test_the_adaptive_clipping_norm_adapts():
    strategy, _ = strategy_and_reports()
    wrapped = DifferentialPrivacyClientSideAdaptiveClipping(strategy, **ADAPTIVE)
    play(client_app(linear, own_data, mods=[adaptiveclipping_mod], **STEP), wrapped)
    assert wrapped.clipping_norm != CLIP


def numpy_app(mod) -> ClientApp:
    def client_fn(context):
        return FedCOMEClient(
            linear(), *own_data(context), client_id=str(context.node_config["partition-id"]), **STEP
        ).to_client()

    return ClientApp(client_fn=client_fn, mods=[mod])


def test_fixed_clipping_on_old_numpy_clients_works_with_their_own_mod():
    strategy, reports = strategy_and_reports()
    play(numpy_app(numpy_fixedclipping_mod), DifferentialPrivacyClientSideFixedClipping(strategy, **FIXED))
    assert [len(report.clients) for report in reports] == [NODES, NODES]
    assert not any(report.left_out or report.evaluation_left_out for report in reports)
    assert 0 < reports[0].direction_norm <= CLIP * (1 + 1e-5)


def test_adaptive_clipping_on_old_numpy_clients_ends_in_flowers_error():
    """Flower's wrapper looks for the bit in every MetricRecord of a reply, and old replies have it in none."""
    wrapped = DifferentialPrivacyClientSideAdaptiveClipping(FedCOMEStrategy(), **ADAPTIVE)
    with pytest.raises(AggregationError, match="KEY_NORM_BIT"):
        play(numpy_app(numpy_adaptiveclipping_mod), wrapped)


@pytest.mark.parametrize("name", SERVER_SIDE)
def test_clipping_at_the_server_works(name):
    strategy, reports = strategy_and_reports()
    play(client_app(linear, own_data, **STEP), SERVER_SIDE[name](strategy))
    assert_clean(reports)
    assert 0 < reports[0].direction_norm <= CLIP * (1 + 1e-5)


def test_local_differential_privacy_works_without_a_wrapper():
    strategy, reports = strategy_and_reports()
    mod = LocalDpMod(clipping_norm=CLIP, sensitivity=1e-3, epsilon=5.0, delta=1e-5)
    play(client_app(linear, own_data, mods=[mod], **STEP), strategy)
    assert_clean(reports)
    assert 0 < reports[0].direction_norm < 2 * CLIP


def test_a_clipping_mod_without_its_wrapper_is_left_out_with_flowers_text():
    strategy, reports = strategy_and_reports()
    result = play(client_app(linear, own_data, mods=[fixedclipping_mod], **STEP), strategy, rounds=1)
    assert reports[0].unchanged == "no usable reply"
    assert all("requires the key 'clipping_norm'" in reason for reason in reports[0].left_out.values())
    assert len(reports[0].left_out) == NODES
    np.testing.assert_array_equal(
        [a.numpy().sum() for a in result.arrays.values()], [a.sum() for a in model_arrays(linear()).values()]
    )


def test_clipping_mods_refuse_methods_that_send_two_models():
    reports = []
    strategy = UpdateStrategy(method=scaffold(), selector=UniformSelection(), on_round=reports.append)
    wrapped = DifferentialPrivacyClientSideFixedClipping(strategy, **FIXED)
    play(client_app(linear, own_data, mods=[fixedclipping_mod], **STEP), wrapped, rounds=1)
    # The wrapper does not even ask the strategy once a client fails.
    assert not reports
    strategy = UpdateStrategy(method=scaffold(), selector=UniformSelection(), on_round=reports.append)
    mod = LocalDpMod(clipping_norm=CLIP, sensitivity=1e-3, epsilon=5.0, delta=1e-5)
    play(client_app(linear, own_data, mods=[mod], **STEP), strategy, rounds=1)
    assert all("expects exactly one ArrayRecord, but found 2" in reason for reason in reports[0].left_out.values())
    assert len(reports[0].left_out) == NODES


LOCAL_DP = LocalDpMod(clipping_norm=CLIP, sensitivity=1e-3, epsilon=5.0, delta=1e-5)


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod, LOCAL_DP])
def test_a_pseudo_gradient_does_not_escape_a_clipping_mod(mod):
    """The mods subtract the broadcast model from what is none, and would clip nothing."""
    strategy, reports = strategy_and_reports()
    app = client_app(linear, own_data, mods=[mod], reply="pseudo-gradient", **STEP)
    play(app, strategy, rounds=1, clipping_norm=CLIP)  # as Flower's wrappers tell the mods
    assert reports[0].unchanged == "no usable reply"
    assert len(reports[0].left_out) == NODES
    name = getattr(mod, "__name__", "LocalDpMod")
    assert all(f"reply: expected 'model' with {name}" in reason for reason in reports[0].left_out.values())


def test_flowers_fixed_clipping_would_leave_a_pseudo_gradient_as_it_is():
    """Why `client_app` refuses the two together: a client of one's own, which does not, is not clipped."""
    inner = client_app(linear, own_data, reply="pseudo-gradient", **STEP)
    app = ClientApp()
    app.query()(lambda message, context: inner(message, context))
    app.train(mods=[fixedclipping_mod])(lambda message, context: inner(message, context))
    strategy, reports = strategy_and_reports()
    play(app, DifferentialPrivacyClientSideFixedClipping(strategy, **FIXED), rounds=1)
    assert reports[0].direction_norm > 2 * CLIP


def test_secure_aggregation_says_what_is_missing_and_leaves_the_model():
    strategy, reports = strategy_and_reports()
    play(client_app(linear, own_data, mods=[secaggplus_mod], **STEP), strategy, rounds=1)
    assert reports[0].unchanged == "no usable reply"
    assert all("KeyError: 'secaggplus_configs'" in reason for reason in reports[0].left_out.values())
    assert len(reports[0].left_out) == NODES


def test_flowers_accountant_refuses_what_is_no_mean():
    """Its noise is made for a mean, where a client moves the result by its share only."""
    config = PrivacyConfig(1e-5, NODES, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = SimpleNamespace(config=config)  # Flower's own needs a package of Google's
    with pytest.raises(ValueError, match=r"requires a strategy using FedAvg\.aggregate_train"):
        DifferentialPrivacyServerSideFixedClipping(FedCOMEStrategy(), **FIXED, accountant=accountant)


def test_one_clipped_client_moves_the_direction_by_far_more_than_its_share():
    """Why noise of the size noise_multiplier · clip / M hides nobody under FedCOME."""
    count = 20
    honest = np.random.default_rng(0).normal(size=(count, 200)) + 0.3
    honest /= np.linalg.norm(honest, axis=1, keepdims=True)  # clipped to norm 1
    veto = -honest[:-1].mean(axis=0)
    neighbour = np.vstack([honest[:-1], veto / np.linalg.norm(veto)])
    one, other = (rows.T @ solve_consensus(rows @ rows.T).coefficients.mean(axis=0) for rows in (honest, neighbour))
    of_mean = np.linalg.norm(honest.mean(axis=0) - neighbour.mean(axis=0))
    assert of_mean <= 2 / count
    assert np.linalg.norm(one - other) > 3 * of_mean
