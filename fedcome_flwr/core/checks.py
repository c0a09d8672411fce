"""Checks of arguments: each text names the parameter, what was expected and what was found."""

from collections.abc import Sequence


def check_share(name: str, value: float, *, zero: bool = True) -> None:
    """Refuse a value outside [0, 1], or outside (0, 1] with ``zero=False``."""
    if not ((value >= 0 if zero else value > 0) and value <= 1):
        interval = "[0, 1]" if zero else "(0, 1]"
        raise ValueError(f"{name}: expected a number in {interval}, found {value!r}")


def check_at_least(name: str, value: float, least: float) -> None:
    """Refuse a value below ``least``, NaN included."""
    if not value >= least:
        raise ValueError(f"{name}: expected at least {least}, found {value!r}")


def check_positive_or_none(name: str, value: float | None) -> None:
    """Refuse a number that is not positive and finite; ``None`` means without the bound."""
    if value is not None and not 0 < value < float("inf"):
        raise ValueError(f"{name}: expected a positive number or None, found {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the given names."""
    if value not in choices:
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}: expected one of {expected}; found {value!r}")
