import pytest

from fedcome_flwr.simulation import AppError, run_app
from fedcome_flwr.simulation.run_config import flatten, override
from tests.unit.simulation.apps import PYPROJECT, write_app


def test_nested_tables_get_dotted_keys():
    assert flatten({"a": 1, "b": {"c": {"d": "x"}, "e": True}}) == {"a": 1, "b.c.d": "x", "b.e": True}


def test_lists_are_no_values():
    with pytest.raises(AppError, match=r"'b.c' holds \[1\], a list"):
        flatten({"b": {"c": [1]}})


DEFAULTS = {"lr": 0.1, "rounds": 3, "gpu": False, "name": "x"}


def test_overrides_replace_and_whole_numbers_become_numbers():
    config = override(DEFAULTS, {"lr": 1, "gpu": True})
    assert config == {"lr": 1.0, "rounds": 3, "gpu": True, "name": "x"}
    assert type(config["lr"]) is float
    assert DEFAULTS["lr"] == 0.1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"LR": 1.0}, "'LR' is not among the app's own, which are: gpu, lr, name, rounds"),
        ({"rounds": 3.0}, "'rounds' needs a whole number like its default 3, got the number 3.0"),
        ({"rounds": True}, "'rounds' needs a whole number like its default 3, got the boolean True"),
        ({"gpu": 1}, "'gpu' needs a boolean like its default False, got the whole number 1"),
        ({"lr": "0.1"}, "'lr' needs a number like its default 0.1, got the string '0.1'"),
        ({"name": {"first": "x"}}, "'name.first' is not among"),
    ],
)
def test_wrong_overrides_are_refused(change, text):
    with pytest.raises(AppError) as caught:
        override(DEFAULTS, change)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("pyproject", "text"),
    [
        ("[project]", "names no serverapp"),
        ("tool.flwr = 3", "'flwr' in pyproject.toml must be a table, found 3"),
        ("[project", "is no valid TOML file"),
        (PYPROJECT.replace("clientapp", "client"), "names no clientapp"),
        (
            PYPROJECT.replace("tiny.server_app:app", "tiny.server_app"),
            'must look like "package.module:attribute"',
        ),
        (PYPROJECT.replace("tiny.server_app", "tiny.servr"), "there is no module 'tiny.servr' in"),
        (PYPROJECT.replace("tiny.server_app", "tyni.server_app"), "there is no module 'tyni' in"),
        (PYPROJECT.replace("server_app:app", "server_app:main.app"), "has no 'app'"),
        (PYPROJECT.replace("server_app:app", "server_app:main"), "is a function, not a flwr ServerApp"),
        (PYPROJECT.replace("client_app:app", "server_app:app"), "is a ServerApp, not a flwr ClientApp"),
        (
            PYPROJECT + '[tool.flwr.federations]\ndefault="a"\n[tool.flwr.federations.a]\noptions.num-supernodes="3"',
            "num-supernodes in",
        ),
    ],
)
def test_a_folder_that_is_no_app_is_refused(tmp_path, pyproject, text):
    with pytest.raises(AppError) as caught:
        run_app(write_app(tmp_path / "app", pyproject=pyproject))
    assert text in str(caught.value)


def test_missing_folder_and_missing_file_are_told_apart(tmp_path):
    with pytest.raises(AppError, match="there is no folder"):
        run_app(tmp_path / "nowhere")
    with pytest.raises(AppError, match=r"has no pyproject.toml; name the folder"):
        run_app(tmp_path)


@pytest.mark.parametrize("code", ["import no_such_package", "1 / 0"])
def test_errors_of_the_apps_own_code_come_through(tmp_path, code):
    folder = write_app(tmp_path / "app")
    (folder / "tiny" / "task.py").write_text(code)
    with pytest.raises((ModuleNotFoundError, ZeroDivisionError)):
        run_app(folder)
