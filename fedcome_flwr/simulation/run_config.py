"""Run configurations: nested tables to dotted keys, and changes to an app's defaults."""

from collections.abc import Mapping
from typing import Any

from .observer import ConfigValue


class AppError(ValueError):
    """An app folder, or a setting asked of the app, that cannot be used; the text says what to do."""


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, ConfigValue]:
    """Return a table with the keys of nested tables joined by dots, as in ``context.run_config``."""
    flat: dict[str, ConfigValue] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, bool | int | float | str):
            flat[name] = value
        else:
            raise AppError(
                f"run-config key {name!r} holds {value!r}, a {type(value).__name__}; "
                "Flower takes booleans, whole numbers, numbers and strings (and tables of them)"
            )
    return flat


def override(defaults: Mapping[str, ConfigValue], changes: Mapping[str, Any]) -> dict[str, ConfigValue]:
    """Return the app's defaults with the changes, which must name the app's keys and keep their types.

    Flower refuses unknown keys too. It takes values of any type, so that ``lr="0.1"`` fails in the middle
    of a round; here it fails at once. A whole number for a number is fine.
    """
    config = dict(defaults)
    for key, value in flatten(changes).items():
        if key not in defaults:
            known = ", ".join(sorted(defaults)) or "none"
            raise AppError(
                f"run-config key {key!r} is not among the app's own, which are: {known}. "
                "Correct the name, or add the key with a default to [tool.flwr.app.config] in pyproject.toml"
            )
        default = defaults[key]
        if type(default) is float and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise AppError(
                f"run-config key {key!r} needs a {_KIND[type(default)]} like its default {default!r}, "
                f"got the {_KIND[type(value)]} {value!r}"
            )
        config[key] = value
    return config


_KIND = {bool: "boolean", int: "whole number", float: "number", str: "string"}
