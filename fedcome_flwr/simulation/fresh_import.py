"""Import from a folder as if for the first time, and leave no trace."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any

_NEVER_RELOADED = frozenset({"__main__", "flwr", "fedcome_flwr"}) | sys.stdlib_module_names


@contextmanager
def fresh_imports(folder: Path) -> Iterator[None]:
    """Let imports find a folder's modules first, anew, for the length of a ``with`` block.

    Apps often share names: two copies of a template both have a package ``myapp``, and a notebook may have
    imported one of them by hand. So modules loaded under the folder's names step aside, and afterwards the
    folder's modules go and the former ones come back. No ``__pycache__`` appears in the folder.
    """
    hook = _hook_without_cache_files(folder)
    aside = _take_modules(_names_in(folder))
    sys.path.insert(0, str(folder))
    sys.path_hooks.insert(0, hook)
    _forget_finders(folder)
    try:
        yield
    finally:
        # By location and not by the names of the start: namespace packages, and files written since.
        _take_modules({name for name in sys.modules if _is_directly_in(folder, name)})
        sys.modules.update(aside)
        sys.path_hooks.remove(hook)
        if str(folder) in sys.path:  # the app may have edited sys.path
            sys.path.remove(str(folder))
        _forget_finders(folder)


def _names_in(folder: Path) -> set[str]:
    """Top-level names that an import would find in the folder."""
    return {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/*.py")}


def _is_directly_in(folder: Path, top_level: str) -> bool:
    """Whether a loaded module is the folder's own (those of a virtual environment inside it are not)."""
    module = sys.modules.get(top_level)
    if "." in top_level or module is None:
        return False
    places = [*getattr(module, "__path__", []), getattr(module, "__file__", None)]
    return any(place is not None and Path(place).parent == folder for place in places)


def _take_modules(top_levels: set[str]) -> dict[str, ModuleType]:
    """Remove these modules and their submodules from the loaded ones and return them."""
    top_levels = top_levels - _NEVER_RELOADED
    names = [name for name in sys.modules if name.partition(".")[0] in top_levels]
    return {name: sys.modules.pop(name) for name in names}


class _WithoutCacheFile(SourceFileLoader):
    """Loads source files and writes no ``__pycache__``."""

    # sys.dont_write_bytecode would do that for every package that the app imports: where PyTorch was
    # installed without compiled files, as uv does, each run would compile it again.
    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing."""


def _hook_without_cache_files(folder: Path) -> Callable[[str], FileFinder]:
    """Return a path hook for the folder's own places; it declines others, a virtual environment's too."""

    def hook(path: str) -> FileFinder:
        if not _is_own(folder, path):
            raise ImportError(f"{path} is not part of {folder}")  # how a path hook declines
        return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_WithoutCacheFile, SOURCE_SUFFIXES))

    return hook


def _is_own(folder: Path, path: str) -> bool:
    return Path(path).is_relative_to(folder) and "site-packages" not in Path(path).parts


def _forget_finders(folder: Path) -> None:
    for path in [path for path in sys.path_importer_cache if _is_own(folder, path)]:
        del sys.path_importer_cache[path]
    importlib.invalidate_caches()  # files may have been written a moment ago
