"""Imports go one way: the mathematics knows neither Flower nor torch, the server does not know torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedcome_flwr

PACKAGE = Path(fedcome_flwr.__file__).parent
MAY_IMPORT = {
    "core": set(),
    "report": {"core"},
    "server": {"core"},
    "client": {"core"},
    "simulation": {"core", "server", "client"},
    "cli": {"core", "server", "client", "simulation", "report"},
}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("statement", ["import fedcome_flwr", "import fedcome_flwr.core", "import fedcome_flwr.report"])
def test_the_mathematics_loads_neither_flower_nor_torch(statement):
    assert not {"flwr", "torch", "ray", "cvxopt", "matplotlib"} & loaded_after(statement)


@pytest.mark.parametrize("statement", ["from fedcome_flwr import FedCOMEStrategy", "import fedcome_flwr.cli"])
def test_a_server_needs_no_torch(statement):
    assert not {"torch", "ray", "cvxopt", "matplotlib"} & loaded_after(statement)


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_rooms_import_only_what_lies_before_them(file):
    parts = file.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return  # the package's front door resolves its names lazily
    room = parts[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            package = parts[: len(parts) - node.level]
            target = ".".join((*package, *filter(None, [node.module]))).split(".")[0]
            assert target in {"", room, *MAY_IMPORT[room]}, f"{file} imports {target}"
        modules = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
        for module in modules:
            top = module.split(".")[0]
            assert top != "torch" or room == "client", f"{file} imports torch"
            assert top != "flwr" or room in {"server", "client", "simulation", "cli"}, f"{file} imports flwr"


def test_every_public_name_resolves():
    for name in fedcome_flwr.__all__:
        assert getattr(fedcome_flwr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'FedComeStrategy'"):
        fedcome_flwr.FedComeStrategy  # noqa: B018
