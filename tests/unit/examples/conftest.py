"""The quickstart's modules, and messages to its ClientApp without a network."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore import task_identity

APP_FOLDER = Path(__file__).parents[3] / "examples" / "quickstart"

Ask = Callable[..., RecordDict]


@pytest.fixture(autouse=True)
def quickstart(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "torchvision", "datasets", "flwr_datasets", "sklearn"):
        pytest.importorskip(module, reason=f"the quickstart needs {module}: extras torch and data")
    monkeypatch.syspath_prepend(str(APP_FOLDER))


@pytest.fixture
def run_config() -> dict[str, Any]:
    config: dict[str, Any] = tomllib.loads((APP_FOLDER / "pyproject.toml").read_text())
    return dict(config["tool"]["flwr"]["app"]["config"])


@pytest.fixture
def ask(run_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Send client 0 of 10 one message and return what it replies."""
    from quickstart.client_app import app

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(task_identity.TaskIdentity, name, 1)

    def send(message_type: str, arrays: Any = None, client: int = 0, **config: int) -> RecordDict:
        content = RecordDict({"config": ConfigRecord({k.replace("_", "-"): v for k, v in config.items()})})
        if arrays is not None:
            content["arrays"] = arrays
        node_config = {"partition-id": client, "num-partitions": 10}
        context = Context(1, 1, node_config, RecordDict(), run_config)
        return app(Message(content, 1, message_type), context).content

    return send
