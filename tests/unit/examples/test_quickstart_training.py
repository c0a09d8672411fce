"""What the quickstart's clients compute and report."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from fedcome_flwr.client import model_arrays


@pytest.fixture
def task():
    from quickstart import task

    return task


@pytest.fixture
def model(task):
    return task.initial_model("auto", (1, 8, 8), 10, 0)


@pytest.fixture
def arrays(model):
    from flwr.app import ArrayRecord

    return ArrayRecord(model.state_dict())


@pytest.fixture
def first_client(run_config):
    from quickstart.data import train_images
    from quickstart.settings import DataSettings

    return train_images(DataSettings.from_run_config(run_config), 10, 0)


def gradients(model, images, labels):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    return torch.autograd.grad(loss, list(model.parameters()))


def test_one_full_batch_step_is_gradient_descent(run_config, ask, model, arrays, first_client):
    run_config |= {"batch-size": 0, "learning-rate": 0.3, "learning-rate-decay": 0.9, "weight-decay": 0.01}
    replied = ask("train", arrays, server_round=3)["arrays"].to_torch_state_dict()
    rate = 0.3 * 0.9**3
    steps = gradients(model, *first_client)
    for (name, weights), gradient in zip(model.named_parameters(), steps, strict=True):
        expected = weights - rate * (gradient + 0.01 * weights)
        torch.testing.assert_close(replied[name], expected.detach())


def test_momentum_and_epochs(run_config, ask, model, arrays, first_client):
    run_config |= {"batch-size": 0, "local-epochs": 3, "momentum": 0.5, "weight-decay": 0.0}
    run_config |= {"learning-rate": 0.1, "learning-rate-decay": 1.0}
    replied = ask("train", arrays, server_round=1)["arrays"].to_torch_state_dict()
    velocity = [torch.zeros_like(one) for one in model.parameters()]
    for _ in range(3):
        for one, speed, gradient in zip(model.parameters(), velocity, gradients(model, *first_client), strict=True):
            speed.mul_(0.5).add_(gradient)
            one.data.sub_(0.1 * speed)
    for name, expected in model.named_parameters():
        torch.testing.assert_close(replied[name], expected.detach())


def test_the_seed_in_the_message_fixes_every_byte(ask, arrays):
    def trained(**config):
        record = ask("train", arrays, server_round=1, **config)["arrays"]
        return [record[name].data for name in record]

    assert trained(client_seed=7) == trained(client_seed=7)
    assert trained(client_seed=7) != trained(client_seed=8)


def test_without_a_seed_every_round_has_its_own_but_repeatable_order(run_config, ask, arrays):
    run_config["learning-rate-decay"] = 1.0

    def trained(server_round):
        record = ask("train", arrays, server_round=server_round)["arrays"]
        return [record[name].data for name in record]

    assert trained(1) == trained(1)
    assert trained(1) != trained(2)


def test_reported_losses(run_config, ask, task, model, arrays, first_client):
    run_config["weight-decay"] = 0.02
    reply = ask("train", arrays, server_round=1)
    metrics = reply["metrics"]
    before, _ = task.evaluate(model, *first_client)
    norm = sum(parameter.square().sum().item() for parameter in model.parameters())
    assert metrics["num-examples"] == len(first_client[1])
    assert metrics["train-loss"] == pytest.approx(before, rel=1e-6)
    assert metrics["objective"] == pytest.approx(before + 0.5 * 0.02 * norm, rel=1e-5)
    model.load_state_dict(reply["arrays"].to_torch_state_dict())
    assert metrics["train-loss-after"] == pytest.approx(task.evaluate(model, *first_client)[0], rel=1e-6)
    assert metrics["train-loss-after"] < metrics["train-loss"]


def test_buffers_do_not_count_in_the_objective(task):
    model = torch.nn.BatchNorm1d(4)
    model.running_mean += 100
    assert task.decay_penalty(model_arrays(model), 0.5) == pytest.approx(0.5 * 0.5 * 4)


def test_evaluation_in_parts_is_the_mean_over_all(task, monkeypatch):
    model = task.initial_model("mlp", (1, 8, 8), 10, 0)
    images, labels = torch.randn(17, 1, 8, 8), torch.arange(17) % 10
    whole = task.evaluate(model, images, labels)
    monkeypatch.setattr(task, "EVALUATION_BATCH", 5)
    assert task.evaluate(model, images, labels) == pytest.approx(whole, rel=1e-6)
    scores = model(images)
    assert whole[0] == pytest.approx(torch.nn.functional.cross_entropy(scores, labels).item(), rel=1e-6)
    assert whole[1] == (scores.argmax(1) == labels).sum().item() / 17


def test_every_reply_says_which_client_it_is(ask, arrays):
    replies = [
        ask("train", arrays, client=2, server_round=1),
        ask("evaluate", arrays, client=2),
        ask("query", client=2),
    ]
    assert [reply["client"]["client-id"] for reply in replies] == ["2"] * 3
    assert set(replies[1]["metrics"]) == {"num-examples", "loss", "accuracy"}


@pytest.mark.parametrize(
    ("name", "shape", "classes", "layers"),
    [
        ("auto", (1, 8, 8), 10, [(64, 64), (10, 64)]),
        ("auto", (1, 28, 28), 10, [(64, 784), (10, 64)]),
        ("auto", (1, 28, 28), 62, [(32, 1, 5, 5), (64, 32, 5, 5), (512, 3136), (62, 512)]),
        ("auto", (3, 32, 32), 100, [(32, 3, 5, 5), (64, 32, 5, 5), (512, 4096), (100, 512)]),
        ("mlp", (3, 32, 32), 10, [(64, 3072), (10, 64)]),
        ("cnn", (1, 28, 28), 10, [(32, 1, 5, 5), (64, 32, 5, 5), (512, 3136), (10, 512)]),
    ],
)
def test_networks(task, name, shape, classes, layers):
    model = task.initial_model(name, shape, classes, 0)
    assert [tuple(weights.shape) for key, weights in model.state_dict().items() if "weight" in key] == layers
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_first_weights_depend_on_the_seed_alone(task):
    def weights(seed):
        return task.initial_model("mlp", (1, 8, 8), 10, seed)[1].weight

    torch.manual_seed(5)
    first, drawn = weights(1), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


def test_wrong_models_are_named(task):
    with pytest.raises(ValueError, match="model: expected one of auto, mlp, cnn; got 'resnet'"):
        task.initial_model("resnet", (1, 8, 8), 10, 0)
    with pytest.raises(ValueError, match="'cnn' needs images of at least 4×4 pixels; got 3×3"):
        task.initial_model("cnn", (1, 3, 3), 10, 0)
