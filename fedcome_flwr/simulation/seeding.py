"""Seed the global random generators that an app's code may draw from."""

import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np


def seed_generators(seed: int) -> None:
    """Seed Python's ``random``, NumPy's global generator and, if it is loaded, PyTorch's."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the global generator is the one that apps' code draws from
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@contextmanager
def torch_seeded_on_import(seed: int) -> Iterator[None]:
    """Seed PyTorch as soon as something in the ``with`` block imports it.

    An app often makes a model where its module is imported, right below ``import torch``, and PyTorch starts
    with a random seed. Loading PyTorch first, for its seed alone, would cost seconds in apps that do not use
    it.
    """
    finder = _TorchSeeder(seed)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.leave()


class _TorchSeeder:
    """Stands before Python's finders until the first import of PyTorch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        self.leave()
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_seed(module: ModuleType) -> None:
                execute(module)
                module.manual_seed(self._seed)

            loader.exec_module = execute_and_seed
        return spec
