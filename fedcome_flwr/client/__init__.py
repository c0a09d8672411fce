"""What clients do, on PyTorch: train a model locally, and the ready apps around it.

:func:`train_locally`, :func:`model_arrays` and :func:`load_arrays` work without Flower; :func:`client_app` and
:class:`FedCOMEClient` make Flower clients of them. Names are resolved when they are first used, so that the former
do not load Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .apps import client_app as client_app
    from .arrays import load_arrays as load_arrays
    from .arrays import model_arrays as model_arrays
    from .numpy_client import FedCOMEClient as FedCOMEClient
    from .surroundings import memory_mod as memory_mod
    from .training import LocalResult as LocalResult
    from .training import train_locally as train_locally

_MODULE_OF = {
    "FedCOMEClient": "numpy_client",
    "LocalResult": "training",
    "client_app": "apps",
    "load_arrays": "arrays",
    "memory_mod": "surroundings",
    "model_arrays": "arrays",
    "train_locally": "training",
}

__all__ = ["FedCOMEClient", "LocalResult", "client_app", "load_arrays", "memory_mod", "model_arrays", "train_locally"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f'{name} needs PyTorch: pip install "fedcome-flwr[torch]"', name="torch") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
