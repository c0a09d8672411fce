"""What cannot be trained on is refused with what was expected and what was found."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs the extra torch")


from torch.utils.data import DataLoader, TensorDataset

from fedcome_flwr.client import train_locally
from fedcome_flwr.client.settings import check_defaults, read_settings
from tests.unit.client._models import examples, linear

EMPTY = examples(0)
FEW = examples(3)


@pytest.mark.parametrize("batch_size", [0, 5])
@pytest.mark.parametrize("train_loss", [True, False])
@pytest.mark.parametrize("data", [EMPTY, [], DataLoader(TensorDataset(*EMPTY))], ids=["tensors", "list", "loader"])
def test_no_examples(data, batch_size, train_loss):
    with pytest.raises(ValueError, match="data: expected at least one example, found none"):
        train_locally(linear(), data, batch_size=batch_size, train_loss=train_loss)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ((FEW[0], FEW[1][:2]), "expected as many targets as inputs, found 2 and 3"),
        (iter([FEW]), "expected batches that can be read more than once, found a list_iterator"),
        (TensorDataset(*FEW), r"the TensorDataset itself; give a DataLoader\(dataset"),
        ([{"image": FEW[0], "label": FEW[1]}], "expected batches of two parts, inputs and targets, found a dict"),
        ([(*FEW, FEW[1])], "expected batches of two parts, inputs and targets, found 3 parts"),
    ],
    ids=["lengths", "iterator", "dataset", "dictionaries", "triples"],
)
def test_data_of_another_kind(data, text):
    with pytest.raises(ValueError, match=f"data: .*{text}"):
        train_locally(linear(), data)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("learning_rate", -0.1),
        ("learning_rate", float("nan")),
        ("learning_rate_decay", -1),
        ("momentum", -1),
        ("weight_decay", -1),
        ("batch_size", -1),
        ("local_epochs", 0),
        ("max_grad_norm", -1),
        ("loss_batches", -1),
    ],
)
def test_settings_out_of_range(setting, value):
    with pytest.raises(ValueError, match=f"{setting}: expected at least [01], found {value}"):
        train_locally(linear(), FEW, **{setting: value})


def test_the_first_configuration_that_has_a_setting_counts():
    configs = {"learning-rate": 1, "other": "x"}, {"learning-rate": 2.0, "amp": True, "threads": 3}
    settings = read_settings(configs, {"amp": False, "momentum": 0.5})
    assert settings == {"learning_rate": 1.0, "amp": True, "momentum": 0.5}
    assert isinstance(settings["learning_rate"], float)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("amp", "false", "true or false, found 'false'"),
        ("batch-size", 2.5, "a whole number, found 2.5"),
        ("batch-size", True, "a whole number, found True"),
        ("learning-rate", "0.1", "a number, found '0.1'"),
        ("learning-rate", True, "a number, found True"),
        ("device", 0, "a text, found 0"),
    ],
)
def test_configuration_values_of_another_kind(key, value, text):
    with pytest.raises(ValueError, match=f"config value '{key}': expected {text}"):
        read_settings([{key: value}], {})


@pytest.mark.parametrize("name", ["learnin_rate", "client_seed", "server_round"])
def test_a_misspelt_setting(name):
    with pytest.raises(TypeError, match=f"unexpected setting '{name}': expected some of learning_rate, "):
        check_defaults({name: 1})


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_local_training_works_without_flower():
    code = """
import sys
sys.modules["flwr"] = None  # any import of it raises
import torch
from fedcome_flwr.client import LocalResult, load_arrays, model_arrays, train_locally
model = torch.nn.Linear(2, 2)
result = train_locally(model, (torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)))
assert isinstance(result, LocalResult)
load_arrays(model, result.arrays)
print(sorted(model_arrays(model)), [name for name in sys.modules if name.startswith("flwr")])
"""
    assert run(code) == "['bias', 'weight'] ['flwr']\n"


def test_a_missing_torch_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
import fedcome_flwr.client
for name in fedcome_flwr.client.__all__:
    try:
        getattr(fedcome_flwr.client, name)
    except ImportError as error:
        print(error)
"""
    lines = run(code).splitlines()
    assert len(lines) == 6
    assert all(line.endswith(' needs PyTorch: pip install "fedcome-flwr[torch]"') for line in lines)
