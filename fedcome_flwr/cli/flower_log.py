"""Flower's log, without its chatter and its own colours."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

# Flower logs about ten INFO lines a round. Those shown anyway: our strategies' line per round, and the only
# sign of a ServerApp that waits for more clients than there are.
_WAITING = "Waiting for nodes to connect"
_SHOWN = ("fedcome", _WAITING)


@contextmanager
def flower_log(handler: logging.Handler, *, verbose: bool) -> Iterator[None]:
    """Send Flower's log to this handler for the length of a ``with`` block; all of it if ``verbose``."""
    handler.addFilter(_Chatter(verbose))
    logger = logging.getLogger("flwr")
    before = logger.handlers[:]
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = before


class _Chatter:
    """Lets through what a user should see; of a wait, which Flower logs every second, the first line."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._waiting = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show the record."""
        was_waiting, self._waiting = self._waiting, record.getMessage().startswith(_WAITING)
        if record.levelno >= logging.WARNING:
            return True
        if record.levelno < logging.INFO or (was_waiting and self._waiting):
            return False
        return self._verbose or record.getMessage().startswith(_SHOWN)


class PlainHandler(logging.Handler):
    """Writes warnings to standard error, the rest to standard output, whatever these are at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        print(_text(record), file=stream, flush=True)


class ConsoleHandler(logging.Handler):
    """Writes lines above the bar of a console; warnings stand out."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        color = "red" if record.levelno >= logging.ERROR else "yellow"
        style = color if record.levelno >= logging.WARNING else ""
        self._console.print(Text(_text(record), style=style))


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage().expandtabs(4)
    if text.startswith(_WAITING):
        text += " No more will come: stop, and raise --num-supernodes or lower the strategy's minimum."
    return f"{record.levelname}: {text}" if record.levelno >= logging.WARNING else text
