"""Three devices' data, and a federation of three devices with TLS and authenticated keys."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment.federation import Federation, missing_tools

APP = Path(__file__).parents[2] / "examples" / "devices"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of devices 0, 1 and 2, each with classes of its own."""
    pytest.importorskip("torch", reason="needs the extra torch")
    pytest.importorskip("sklearn", reason="needs scikit-learn's digits")
    if missing := missing_tools():
        pytest.skip(f"needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("devices") / "data"
    subprocess.run([sys.executable, APP / "prepare_data.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Federation]:
    """A SuperLink with three SuperNodes named 0, 1 and 2, all online."""
    with Federation(tmp_path_factory.mktemp("federation") / "secure") as running:
        for name in ("0", "1", "2"):
            running.start_device(name, data / name)
        running.wait_for("three devices online", lambda: running.online() == 3)
        yield running
