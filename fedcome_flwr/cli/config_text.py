"""The text form of run-config changes, as `flwr run --run-config` takes it."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..simulation.run_config import AppError, flatten

_PAIR = re.compile(r"""\s*([^\s=]+)=('[^']*'|"[^"]*"|\S+)(?=\s|$)""")
_EXPECTED = """expected pairs like "lr=0.1 use-gpu=true name='abc'", or a TOML file"""


def parse_run_config(texts: Iterable[str], option: str = "run-config") -> dict[str, Any]:
    """Return the changes that these texts ask for; later ones win. ``option`` is what errors call it.

    Each text is the path of a TOML file, or pairs ``key=value`` with spaces between them, the values in
    TOML. Flower passes over what does not look like a pair; here it is an error that names the place.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        changes |= flatten(
            _read_file(text, option) if text.endswith(".toml") and "=" not in text else _pairs(text, option)
        )
    return changes


def _read_file(name: str, option: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise AppError(f"cannot read the {option} file {name!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppError(f"{option} file {name!r} is no valid TOML: {error}") from error


def _pairs(text: str, option: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    end = len(text.rstrip())
    position = 0
    while position < end:
        match = _PAIR.match(text, position)
        if match is None:
            raise AppError(f"{option}: cannot read {text[position:].strip()!r}; {_EXPECTED}")
        pairs |= _pair(match[1], match[2], option)
        position = match.end()
    return pairs


def _pair(key: str, value: str, option: str) -> dict[str, Any]:
    try:
        return flatten(tomllib.loads(f"{key} = {value}"))
    except tomllib.TOMLDecodeError as error:
        hint = f"write strings in quotes: {key}='{value}'" if value[0] not in "'\"" else _EXPECTED
        raise AppError(f"{option}: {key}={value} is no TOML value ({error}); {hint}") from error
