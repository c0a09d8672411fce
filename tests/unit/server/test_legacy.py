"""The strategy for servers built from ServerAppComponents, over NumPyClients."""

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.serverapp import ServerApp

from fedcome_flwr import UniformSelection, UpdateStrategy, fedavg
from fedcome_flwr.server.legacy import FedCOMEStrategy
from fedcome_flwr.simulation import run_app
from tests.unit.server._federation import initial
from tests.unit.server.test_numpy_clients import old_app
from tests.unit.server.test_numpy_clients import start as start_message_api


def start(strategy_class=FedCOMEStrategy, app=None, nodes=4, rounds=3, **options):
    """The final arrays and the round metrics of a legacy server's run."""
    seen: dict = {"metrics": {}}

    class Observed(strategy_class):
        def aggregate_fit(self, server_round, results, failures):
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            if parameters is not None:
                seen["arrays"] = parameters_to_ndarrays(parameters)
            seen["metrics"][server_round] = metrics
            return parameters, metrics

    def server_fn(context):
        arrays = [array.numpy() for array in initial().values()]
        strategy = Observed(initial_parameters=ndarrays_to_parameters(arrays), **options)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_app((ServerApp(server_fn=server_fn), app or old_app()), num_supernodes=nodes)
    return seen


def test_it_gives_what_the_message_api_strategy_gives():
    legacy, new = start(), start_message_api(old_app())
    for array, expected in zip(legacy["arrays"], new.arrays.values(), strict=True):
        assert array.tobytes() == expected.numpy().tobytes()
        assert array.dtype == expected.numpy().dtype
    assert legacy["metrics"][3]["fedcome-hurt-by-direction"] == 0
    assert legacy["metrics"][3]["fedcome-clients"] == 4


def test_one_seed_one_result_under_partial_participation():
    runs = [start(fraction_fit=0.5, seed=seed, nodes=8)["arrays"][0].tobytes() for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_any_method_gives_what_it_gives_under_the_message_api():
    legacy = start(method=fedavg("uniform"), selector=UniformSelection(), fraction_fit=0.5, nodes=6)
    new = start_message_api(
        old_app(), UpdateStrategy(method=fedavg("uniform"), fraction_train=0.5, min_train_nodes=2), nodes=6
    )
    assert [array.tobytes() for array in legacy["arrays"]] == [a.numpy().tobytes() for a in new.arrays.values()]


@pytest.mark.parametrize(
    ("replies", "text"),
    [
        ({"arrays": lambda a: a[:1]}, "expected the 2 arrays of the model in their order, found 1"),
        ({"arrays": lambda a: [a[0] * np.nan, a[1]]}, "array 'w': expected finite values"),
        ({"num_examples": 0}, "num-examples: expected a positive number, found 0.0"),
    ],
)
def test_a_bad_reply_is_named_and_stops_nobody(replies, text):
    reports = []
    start(app=old_app(**replies), rounds=2, names=list(initial()), on_round=lambda report: reports.append(report))
    assert [report.clients for report in reports] == [("node-00000", "node-00002", "node-00003")] * 2
    assert text in reports[0].left_out["node-00001"]


def test_a_client_that_raises_is_missing_and_the_others_go_on():
    def fail(parameters, config):
        raise RuntimeError("disk full")

    reports = []
    start(app=old_app(see=fail), rounds=2, on_round=lambda report: reports.append(report))
    assert [report.missing for report in reports] == [("node-00001",)] * 2
    assert [len(report.clients) for report in reports] == [3, 3]


def test_failures_can_be_refused_as_in_flower():
    def fail(parameters, config):
        raise RuntimeError("disk full")

    seen = start(app=old_app(see=fail), rounds=1, accept_failures=False)
    assert "arrays" not in seen


def test_names_tell_statistics_from_parameters():
    def running(name, array):
        return name != "w"

    with pytest.raises(ValueError, match="'seen' was declared a parameter"):
        start(rounds=1, names=list(initial()), parameters=running)


def test_names_must_be_the_models():
    with pytest.raises(ValueError, match="expected the model's 1 arrays in their order, found 2"):
        start(rounds=1, names=["w"])


def test_on_round_can_end_the_training():
    reports = []
    seen = start(rounds=4, on_round=lambda report: reports.append(report) or report.round == 2)
    assert [report.round for report in reports] == [1, 2]
    assert [array.tobytes() for array in seen["arrays"]] == [array.tobytes() for array in start(rounds=2)["arrays"]]


def test_own_aggregation_of_metrics_is_kept():
    def aggregate(results):
        return {"loss": float(np.mean([metrics["train-loss"] for _, metrics in results]))}

    metrics = start(rounds=1, fit_metrics_aggregation_fn=aggregate)["metrics"][1]
    assert metrics["loss"] > 0
    assert metrics["fedcome-certified"] == 1


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match=r"fraction_fit: expected a number in \(0, 1\], found 0.0"):
        FedCOMEStrategy(fraction_fit=0.0)
