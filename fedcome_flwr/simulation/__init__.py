"""Run a whole Flower App on this machine."""

from fedcome_flwr.simulation.inline import InlineGrid
from fedcome_flwr.simulation.observer import RunObserver
from fedcome_flwr.simulation.run import RunResult, run_app
from fedcome_flwr.simulation.run_config import AppError

__all__ = ["AppError", "InlineGrid", "RunObserver", "RunResult", "run_app"]
