"""FedCOME for Flower: consensus aggregation and client selection on heterogeneous data.

Names are resolved when they are first used, so that importing the mathematics (``fedcome_flwr.core``) loads neither
Flower nor PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .core import ConsensusSelection as ConsensusSelection
    from .core import ConsensusSolution as ConsensusSolution
    from .core import Method as Method
    from .core import RoundReport as RoundReport
    from .core import SimilarityTable as SimilarityTable
    from .core import UniformSelection as UniformSelection
    from .core import equal_step_control as equal_step_control
    from .core import fedavg as fedavg
    from .core import fedcome as fedcome
    from .core import feddc as feddc
    from .core import feddyn as feddyn
    from .core import fedfv as fedfv
    from .core import fedprox as fedprox
    from .core import scaffold as scaffold
    from .core import solve_consensus as solve_consensus
    from .server import FedCOMEStrategy as FedCOMEStrategy
    from .server import UpdateStrategy as UpdateStrategy

_ROOMS = {
    "core": (
        "ConsensusSelection",
        "ConsensusSolution",
        "Method",
        "RoundReport",
        "SimilarityTable",
        "UniformSelection",
        "equal_step_control",
        "fedavg",
        "fedcome",
        "feddc",
        "feddyn",
        "fedfv",
        "fedprox",
        "scaffold",
        "solve_consensus",
    ),
    "server": ("FedCOMEStrategy", "UpdateStrategy"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [*_ROOM_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOM_OF])
