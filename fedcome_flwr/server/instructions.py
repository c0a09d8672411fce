"""What a method has to tell the clients, and what it costs to remember."""

from ..core.arrays import Arrays, ParameterRule, split_names
from ..core.local_rule import LocalRule
from ..core.methods import Method
from ..core.server_memory import MemorySums
from .identity import client_seed

Values = dict[str, int | float | bool]


def round_config(seed: int, server_round: int, key: str) -> Values:
    """What every message tells a client: the round, and a seed of its own."""
    return {"server-round": server_round, "client-seed": client_seed(seed, server_round, key)}


def training_config(method: Method, memory: MemorySums, key: str) -> Values:
    """What a client has to be told of the method and of its own memory; nothing for FedAvg and FedCOME.

    ``proximal-mu`` is Flower's own name for the pull of FedProx, which clients written for it look for.
    """
    rule = method.rule
    config: Values = {method.loss_key: True} if method.needs_losses else {}
    if rule != LocalRule():
        config["rule-pull"] = rule.pull
    if rule.pull and not rule.has_memory:
        config["proximal-mu"] = rule.pull
    if rule.has_memory:
        config |= {
            "rule-drift": rule.drift,
            "rule-control": rule.control,
            "memory-epoch": memory.epoch,
            "accepted-round": memory.accepted.get(key, 0),
        }
    return config


def memory_note(method: Method, arrays: Arrays, parameters: ParameterRule) -> str | None:
    """What the method makes server and clients keep beside the model, in words; ``None`` if that is nothing."""
    names, _ = split_names(arrays, parameters)
    model = sum(arrays[name].nbytes for name in names) / 2**20
    vector = sum(arrays[name].size for name in names) * 8 / 2**20
    kept = method.rule.drift + method.rule.control
    notes = []
    if kept:
        notes.append(
            f"{method.name} keeps {kept * vector:.1f} MiB at the server and up to {2 * kept * model:.1f} MiB on each "
            "client"
        )
    if method.rule.control:
        notes.append(f"sends {model:.1f} MiB more to each client and round")
    if method.remember_rounds:
        notes.append(
            f"{method.name} keeps at the server the last pseudo-gradient ({model:.1f} MiB) of every client of the last "
            f"{method.remember_rounds} rounds"
        )
    return ", and ".join(notes) or None
