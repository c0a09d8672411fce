"""Checks of the app on this machine: what is installed, whether it can be imported, whether its data can be read."""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from packaging.requirements import InvalidRequirement, Requirement

from ...simulation import flower_private as flower
from ...simulation.app_folder import AppFolder, load_client_app, load_server_app
from ...simulation.fresh_import import fresh_imports
from ...simulation.run_config import AppError
from ..rounds import first_line
from .finding import Finding

SHOWN = ("flwr", "fedcome-flwr", "torch", "numpy")
NO_QUERY = "No query function registered"  # how a ClientApp says that it knows no query.data


def check_app(app: AppFolder, node_config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is found of packages, imports and, with a node configuration, of data."""
    yield _versions()
    yield from _requirements(app.folder / "pyproject.toml")
    with ExitStack() as imported:
        imported.enter_context(fresh_imports(app.folder))
        yield _importable("ServerApp", app, load_server_app)[0]
        finding, client_app = _importable("ClientApp", app, load_client_app)
        yield finding
        if node_config:
            yield from _paths(node_config)
            if isinstance(client_app, ClientApp):
                yield _data(client_app, app, node_config)


def _versions() -> Finding:
    found = [f"Python {sys.version.split()[0]}"]
    for package in SHOWN:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return Finding("versions", "ok", ", ".join(found), "")


def _requirements(file: Path) -> Iterator[Finding]:
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    for text in project.get("dependencies", []):
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            yield Finding("packages", "problem", f"{file}: {text!r} is no requirement ({error})", "Correct it.")
            continue
        if requirement.marker and not requirement.marker.evaluate():
            continue
        advice = f"pip install '{text}'"
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Finding("packages", "problem", f"the app needs {text}, which is not installed here", advice)
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            yield Finding("packages", "problem", f"the app needs {text}, here is {found}", advice)
        else:
            yield Finding("packages", "ok", f"{requirement.name} {found} is what the app asks for")


def _importable(name: str, app: AppFolder, load: Any) -> tuple[Finding, object]:
    try:
        component = load(app)
    except AppError as error:
        return Finding(name, "problem", str(error), "Correct the app's pyproject.toml."), None
    except ModuleNotFoundError as error:
        extra = " (pip install 'fedcome-flwr[torch]')" if error.name == "torch" else ""
        advice = f"Install what provides {error.name} into this Python, {sys.executable}{extra}."
        return Finding(name, "problem", f"cannot be imported: {error}", advice), None
    except Exception as error:  # the app's own code, which may raise anything
        text = f"cannot be imported: {type(error).__name__}: {first_line(str(error))}"
        return Finding(name, "problem", text, "`fedcome run --debug` shows where."), None
    return Finding(name, "ok", "can be imported"), component


def _paths(node_config: Mapping[str, Any]) -> Iterator[Finding]:
    for key, value in node_config.items():
        if not (isinstance(value, str) and value.startswith(("/", "~"))):
            continue
        path = Path(value)
        try:
            list(path.iterdir()) if path.is_dir() else path.open("rb").close()
        except OSError as error:
            yield Finding(
                "paths",
                "problem",
                f"{key}: {value}: {error.strerror}",
                "Correct --node-config, mount the folder, or let this user read it.",
            )
        else:
            yield Finding("paths", "ok", f"{key}: {value} can be read")


def _data(client_app: ClientApp, app: AppFolder, node_config: Mapping[str, Any]) -> Finding:
    context = Context(1, 1, dict(node_config), RecordDict(), dict(app.run_config))
    with flower.server_identity():
        message = Message(RecordDict(), 1, "query.data")
        flower.number_message(message)
        try:
            reply = client_app(message, context)
        except Exception as error:  # the app's own code, which may raise anything
            if NO_QUERY in str(error):
                return Finding("data", "open", "the ClientApp answers no query.data, so its data were not tried")
            text = f"cannot be loaded: {type(error).__name__}: {first_line(str(error))}"
            return Finding("data", "problem", text, "Correct the data or --node-config.")
    sizes = reply.content.metric_records["metrics"]
    train, test = (sizes[f"num-{part}-examples"] or "?" for part in ("train", "test"))
    return Finding("data", "ok", f"{train} examples to train on, {test} to test on")
