"""Settings of a client from the configurations that Flower gives it."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.local_rule import LocalRule

Config = Mapping[str, Any]

_KINDS: dict[str, type] = {
    "learning-rate": float,
    "learning-rate-decay": float,
    "weight-decay": float,
    "momentum": float,
    "batch-size": int,
    "local-epochs": int,
    "max-grad-norm": float,
    "amp": bool,
    "device": str,
    "train-loss": bool,
    "train-loss-after": bool,
    "loss-batches": int,
    "reply": str,
    "server-round": int,
    "client-seed": int,
}
_EXPECTED = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
_FROM_SERVER = {"server-round", "client-seed"}


def check_defaults(defaults: Config) -> None:
    """Refuse keywords that are no setting, such as a misspelt one."""
    allowed = [key.replace("-", "_") for key in _KINDS if key not in _FROM_SERVER]
    for name in defaults:
        if name not in allowed:
            raise TypeError(f"unexpected setting {name!r}: expected some of {', '.join(allowed)}")


def read_settings(configs: Sequence[Config], defaults: Config) -> dict[str, Any]:
    """The settings that are given, under their Python names (``learning_rate`` for ``learning-rate``).

    Parameters
    ----------
    configs
        Where to look, with kebab-case keys; the first that has a key counts. Other keys are not looked at.
    defaults
        Values by Python name for what no configuration has.

    Raises
    ------
    ValueError
        A value of another kind, such as the text ``"false"`` for a truth value.
    """
    settings = dict(defaults)
    for key, kind in _KINDS.items():
        value = next((config[key] for config in configs if key in config), None)
        if value is not None:
            settings[key.replace("-", "_")] = _checked(key, value, kind)
    return settings


def read_rule(config: Config) -> tuple[LocalRule, int, int]:
    """The local rule that the server asks for, its memory epoch, and the round whose reply it accepted last.

    Only the server's own config counts. A strategy that knows nothing of rules, as Flower's, asks for none, but for
    Flower's FedProx, whose ``proximal-mu`` is a pull.
    """
    kinds = {"rule-pull": float, "rule-drift": bool, "rule-control": bool, "memory-epoch": int, "accepted-round": int}
    found = {key: _checked(key, config[key], kind) for key, kind in kinds.items() if key in config}
    if "rule-pull" not in found and "proximal-mu" in config:
        found["rule-pull"] = _checked("proximal-mu", config["proximal-mu"], float)
    rule = LocalRule(found.get("rule-pull", 0.0), found.get("rule-drift", False), found.get("rule-control", False))
    return rule, found.get("memory-epoch", 0), found.get("accepted-round", 0)


def _checked(key: str, value: object, kind: type) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, kind) and (kind is not int or whole):
        return value
    if kind is float and whole:
        return float(value)  # type: ignore[arg-type]
    raise ValueError(f"config value {key!r}: expected {_EXPECTED[kind]}, found {value!r}")
