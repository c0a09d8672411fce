"""What a run leaves behind: round reports as JSON lines."""

from .jsonl import JsonLines, read_rounds

__all__ = ["JsonLines", "read_rounds"]
