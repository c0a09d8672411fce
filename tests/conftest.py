"""Options and fixtures that all tests share."""

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", default=False, help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--runslow"):
        return
    skip = pytest.mark.skip(reason="slow: run with --runslow (make test-all)")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with local copies of the paper's data sets; skips the test when there is none."""
    folder = os.environ.get("FEDCOME_DATA")
    if not folder:
        pytest.skip("needs real data: set FEDCOME_DATA to the folder that holds mnist, cifar10, grams, …")
    path = Path(folder).resolve()
    if not path.is_dir():
        pytest.fail(f"FEDCOME_DATA names no folder: {path}")
    return path
