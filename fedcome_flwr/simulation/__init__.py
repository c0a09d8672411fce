"""Run a whole Flower App on this machine."""

from .inline import InlineGrid
from .observer import RunObserver
from .result import RunResult
from .run import run_app
from .run_config import AppError

__all__ = ["AppError", "InlineGrid", "RunObserver", "RunResult", "run_app"]
