"""The ready ClientApp, one message at a time."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedcome_flwr.client import client_app, load_arrays, model_arrays, train_locally
from tests.unit.client._federation import STEP, ask, numbers, own_data
from tests.unit.client._models import bytes_of, examples, linear, normalised

ARRAYS = model_arrays(linear(1))
DATA = examples(10, seed=0), examples(5, seed=100)  # client 0's


@pytest.fixture
def app():
    return client_app(linear, own_data, **STEP)


def trained(**settings):
    model = linear(1)
    return train_locally(model, DATA[0], **STEP | settings)


def test_train_replies_what_train_locally_gives(app):
    reply = ask(app, "train", ARRAYS, server_round=4, client_seed=7)
    expected = trained(server_round=4, seed=7)
    assert set(reply) == {"arrays", "metrics", "client"}
    assert bytes_of(numbers(reply["arrays"])) == bytes_of(expected.arrays)
    assert dict(reply["metrics"]) == expected.metrics
    assert dict(reply["client"]) == {"client-id": "0"}


def test_settings_of_the_message_come_before_the_runs_and_those_before_the_apps(app):
    def step(run_config=None, **config):
        return ask(app, "train", ARRAYS, run_config=run_config, **config)["metrics"]["step-size-sum"]

    assert step() == pytest.approx(0.3)
    assert step({"learning-rate": 0.2, "another-setting": True}) == pytest.approx(0.2)
    assert step({"learning-rate": 0.2}, learning_rate=0.1) == pytest.approx(0.1)
    assert step({"batch-size": 5, "local-epochs": 3}) == pytest.approx(0.3 * 2 * 3)
    assert step(learning_rate_decay=0.5, server_round=2) == pytest.approx(0.3 / 4)
    assert "clipped-steps" in ask(app, "train", ARRAYS, max_grad_norm=0.1)["metrics"]
    assert "train-loss" not in ask(app, "train", ARRAYS, train_loss=False)["metrics"]


def test_the_pseudo_gradient_says_the_same_as_the_model():
    app = client_app(normalised, own_data, **STEP)
    arrays = model_arrays(normalised())
    model = numbers(ask(app, "train", arrays, client_seed=1)["arrays"])
    reply = ask(app, "train", arrays, client_seed=1, reply="pseudo-gradient")
    assert "arrays" not in reply
    for name, array in numbers(reply["pseudo-gradient"]).items():
        buffer = "running" in name or "num_batches" in name
        np.testing.assert_allclose(array if buffer else arrays[name] - array, model[name], atol=1e-6)
    app = client_app(normalised, own_data, reply="pseudo-gradient")
    assert "pseudo-gradient" in ask(app, "train", arrays)


def test_without_a_seed_every_round_has_its_own_but_repeatable_order():
    app = client_app(linear, own_data, batch_size=3, learning_rate_decay=1.0)

    def order(server_round):
        return bytes_of(numbers(ask(app, "train", ARRAYS, server_round=server_round)["arrays"]))

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_evaluate(app):
    reply = ask(app, "evaluate", ARRAYS)
    model = linear(1)
    outputs, targets = model(DATA[1][0]), DATA[1][1]
    assert dict(reply["metrics"]) == pytest.approx(
        {
            "num-examples": 5,
            "loss": F.cross_entropy(outputs, targets).item(),
            "accuracy": (outputs.argmax(1) == targets).sum().item() / 5,
        }
    )
    assert dict(reply["client"]) == {"client-id": "0"}


def test_other_losses_and_metrics():
    def regression(context):
        inputs = torch.ones(4, 4)
        return ((inputs, torch.zeros(4, 3)),) * 2

    app = client_app(linear, regression, loss_fn=F.mse_loss)
    assert set(ask(app, "evaluate", ARRAYS)["metrics"]) == {"num-examples", "loss"}
    app = client_app(
        linear,
        regression,
        loss_fn=F.mse_loss,
        metrics_fn=lambda outputs, targets: {"error": (outputs - targets).abs().mean().item()},
    )
    expected = linear(1)(torch.ones(4, 4)).abs().mean().item()
    assert ask(app, "evaluate", ARRAYS)["metrics"]["error"] == pytest.approx(expected)


def test_query_says_who_the_client_is(app):
    assert {name: dict(found) for name, found in ask(app, "query").items()} == {"client": {"client-id": "0"}}
    named = client_app(linear, own_data, client_id="hospital-1")
    assert ask(named, "query")["client"]["client-id"] == "hospital-1"


def test_query_data_says_how_many_examples_there_are():
    def sizes(train, test):
        return dict(ask(client_app(linear, lambda context: (train, test)), "query.data")["metrics"])

    pair = torch.ones(7, 4), torch.zeros(7, dtype=torch.long)
    loader = DataLoader(TensorDataset(*pair), batch_size=3)
    assert sizes(pair, loader) == {"num-train-examples": 7, "num-test-examples": 7}
    assert sizes([pair], pair)["num-train-examples"] == 0  # only reading all would tell
    for broken, message in (([], "at least one example"), (3, "data")):
        with pytest.raises(RuntimeError, match=message):
            sizes(pair, broken)


def test_the_model_function_may_take_the_context_or_not():
    class Net(nn.Linear):
        def __init__(self, inputs=4, outputs=3):
            super().__init__(inputs, outputs)

    for build in (Net, lambda: linear(), lambda context: nn.Linear(4, context.run_config["classes"])):
        app = client_app(build, own_data)
        assert ask(app, "evaluate", ARRAYS, run_config={"classes": 3})["metrics"]["num-examples"] == 5


def test_adapters_only():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = linear().requires_grad_(False)
            self.adapter = nn.Linear(3, 3)

        def forward(self, inputs):
            return self.adapter(self.base(inputs))

    adapter = model_arrays(Adapted(), ["adapter.weight", "adapter.bias"])
    reply = numbers(ask(client_app(Adapted, own_data, **STEP), "train", adapter)["arrays"])
    assert list(reply) == list(adapter)
    model = Adapted()
    load_arrays(model, adapter)
    expected = train_locally(model, DATA[0], **STEP).arrays
    for name, array in reply.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "config", "text"),
    [
        (None, {}, "message: expected an ArrayRecord 'arrays', found none"),
        ({"head": np.zeros(3)}, {}, "array 'head': expected one of the model's 2 names"),
        ({"bias": np.zeros(4)}, {}, r"array 'bias': expected shape \(3,\), found \(4,\)"),
        (ARRAYS, {"reply": "gradient"}, "reply: expected one of 'model', 'pseudo-gradient'; found 'gradient'"),
        (ARRAYS, {"local_epochs": 0}, "local_epochs: expected at least 1, found 0"),
    ],
)
def test_a_bad_message_is_an_error_that_says_why(app, arrays, config, text):
    with pytest.raises(ValueError, match=text):
        ask(app, "train", arrays, **config)


def test_settings_are_checked_when_the_app_is_made():
    with pytest.raises(TypeError, match="unexpected setting 'learnin_rate'"):
        client_app(linear, own_data, learnin_rate=0.1)
    with pytest.raises(ValueError, match="reply: expected one of"):
        client_app(linear, own_data, reply="arrays")
