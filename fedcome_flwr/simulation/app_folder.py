"""Read an ordinary Flower App from its folder."""

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from .observer import ConfigValue
from .run_config import AppError, flatten

COMPONENTS = "[tool.flwr.app.components]"


@dataclass(frozen=True)
class AppFolder:
    """What an app's ``pyproject.toml`` says; nothing of the app is imported yet."""

    folder: Path
    serverapp: str
    clientapp: str
    run_config: Mapping[str, ConfigValue]
    num_supernodes: int | None


def read_app_folder(folder: str | Path) -> AppFolder:
    """Return the settings of the app in a folder.

    Raises
    ------
    AppError
        Where the folder holds no Flower App; the text says what was missing.
    """
    folder = Path(folder).expanduser().resolve()
    file = folder / "pyproject.toml"
    if not folder.is_dir():
        raise AppError(f"expected the folder of a Flower App, but there is no folder {folder}")
    if not file.is_file():
        raise AppError(
            f"expected a Flower App, but {folder} has no pyproject.toml; "
            "name the folder that holds it, or make an app with `flwr new`"
        )
    try:
        flower = _table(tomllib.loads(file.read_text(encoding="utf-8")), "tool", "flwr")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppError(f"{file} is no valid TOML file: {error}") from error
    return AppFolder(
        folder=folder,
        serverapp=_reference(flower, "serverapp", file),
        clientapp=_reference(flower, "clientapp", file),
        run_config=flatten(_table(flower, "app", "config")),
        num_supernodes=_num_supernodes(_table(flower, "federations"), file),
    )


def load_components(app: AppFolder) -> tuple[ServerApp, ClientApp]:
    """Import the app's two components; call it inside :func:`fresh_imports` of its folder.

    What the app's own code raises while it is imported comes through as it is.
    """
    return load_server_app(app), load_client_app(app)


def load_server_app(app: AppFolder) -> ServerApp:
    """Import the app's ServerApp alone, as :func:`load_components` does."""
    server_app = _load(app, "serverapp", app.serverapp)
    if not isinstance(server_app, ServerApp):
        raise AppError(f"serverapp = {app.serverapp!r} is a {type(server_app).__name__}, not a flwr ServerApp")
    return server_app


def load_client_app(app: AppFolder) -> ClientApp:
    """Import the app's ClientApp alone, as :func:`load_components` does."""
    client_app = _load(app, "clientapp", app.clientapp)
    if not isinstance(client_app, ClientApp):
        raise AppError(f"clientapp = {app.clientapp!r} is a {type(client_app).__name__}, not a flwr ClientApp")
    return client_app


def _table(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    for name in path:
        data = data.get(name, {})
        if not isinstance(data, dict):
            raise AppError(f"{name!r} in pyproject.toml must be a table, found {data!r}")
    return dict(data)


def _reference(flower: Mapping[str, Any], component: str, file: Path) -> str:
    reference = _table(flower, "app", "components").get(component)
    if reference is None:
        raise AppError(
            f"{file} names no {component}; a Flower App has both components there:\n"
            f'    {COMPONENTS}\n    serverapp = "package.server_app:app"\n'
            '    clientapp = "package.client_app:app"'
        )
    if not isinstance(reference, str) or not all(reference.partition(":")):
        raise AppError(f'{component} in {file} must look like "package.module:attribute", found {reference!r}')
    return reference


def _num_supernodes(federations: Mapping[str, Any], file: Path) -> int | None:
    """What the older ``[tool.flwr.federations]`` says; Flower 1.42 keeps this outside the app."""
    federation = federations.get(str(federations.get("default")))
    number = _table(federation, "options").get("num-supernodes") if isinstance(federation, dict) else None
    if number is not None and (type(number) is not int or number < 1):
        raise AppError(f"num-supernodes in {file} must be a whole number from 1 on, found {number!r}")
    return number


def _load(app: AppFolder, component: str, reference: str) -> object:
    module_name, _, attributes = reference.partition(":")
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only the module that was asked for, or its package; what the app imports itself is the app's affair.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise AppError(
                f"{component} = {reference!r}: there is no module {error.name!r} in {app.folder}; "
                f"correct {COMPONENTS} in its pyproject.toml"
            ) from error
        raise
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise AppError(
                f"{component} = {reference!r}: module {module_name!r} has no {attribute!r}; "
                f"correct {COMPONENTS} in {app.folder / 'pyproject.toml'}"
            )
        found = getattr(found, attribute)
    return found
