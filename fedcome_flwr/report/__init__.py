"""What a run leaves behind: round reports as JSON lines, as TensorBoard events, and as plots."""

from .jsonl import JsonLines, read_rounds
from .plots import draw_plots
from .run_data import RunData
from .tensorboard import TensorBoard
from .together import together

__all__ = ["JsonLines", "RunData", "TensorBoard", "draw_plots", "read_rounds", "together"]
