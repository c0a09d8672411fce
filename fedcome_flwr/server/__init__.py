"""The rooms that know Flower's server: records to client updates, and the strategies."""

from .strategy import FedCOMEStrategy, UpdateStrategy

__all__ = ["FedCOMEStrategy", "UpdateStrategy"]
