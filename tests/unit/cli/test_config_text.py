import pytest
from flwr.common.config import parse_config_args

from fedcome_flwr.cli.config_text import parse_run_config
from fedcome_flwr.simulation import AppError


@pytest.mark.parametrize(
    "text",
    [
        "lr=0.1",
        "lr=0.1 name='two words' gpu=true n=3",
        "a.b=1  a.c=\"x=y\"\tpath='/tmp/a b'",
        "e=1e-3 neg=-2 empty=''",
        "",
    ],
)
def test_reads_what_flower_reads(text):
    assert parse_run_config([text]) == parse_config_args([text])


def test_later_texts_win():
    assert parse_run_config(["lr=0.1 a=1", "lr=0.2"]) == {"lr": 0.2, "a": 1}


def test_a_toml_file(tmp_path):
    file = tmp_path / "my run.toml"
    file.write_text("lr = 0.1\n[model]\nsize = 3\n")
    assert parse_run_config([str(file), "model.size=4"]) == {"lr": 0.1, "model.size": 4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr", "cannot read 'lr'"),
        ("lr=0.1 oops b=2", "cannot read 'oops b=2'"),
        ("lr = 0.1", "cannot read 'lr = 0.1'"),
        ("a=1 name=abc", "name=abc is no TOML value"),
        ("a=1 name=abc", "name='abc'"),
        ("a='x'y", "a='x'y is no TOML value"),
        ("a=[1,2]", "'a' holds [1, 2], a list"),
        ("nowhere.toml", "cannot read the run-config file 'nowhere.toml'"),
    ],
)
def test_errors_name_the_pair(text, expected):
    with pytest.raises(AppError) as caught:
        parse_run_config([text])
    assert expected in str(caught.value)
