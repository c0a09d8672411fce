"""Show a run: a progress bar on a terminal, plain lines elsewhere."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from flwr.app import Message
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from fedcome_flwr.cli.rounds import RoundLines
from fedcome_flwr.simulation.observer import ConfigValue

# Flower logs about ten INFO lines a round. Those shown anyway: our strategies' line per round, and the only
# sign of a ServerApp that waits for more clients than there are.
_WAITING = "Waiting for nodes to connect"
_INFO_SHOWN = ("fedcome", _WAITING)


@contextmanager
def shown_run(*, plain: bool, verbose: bool) -> Iterator[RoundLines]:
    """Give the observer that shows a run; Flower's log is shown too until the ``with`` block ends."""
    console = Console(highlight=False)
    if plain or not console.is_terminal or not sys.stdout.isatty() or console.is_dumb_terminal:
        lines = RoundLines(lambda line: print(line, flush=True))
        with _flower_log(_PlainHandler(), verbose):
            yield lines
            lines.finish()
        return
    with _progress(console) as progress, _flower_log(_ConsoleHandler(progress.console), verbose):
        bar = _Bar(progress)
        yield bar
        bar.finish()


class _Bar(RoundLines):
    """The lines of the rounds above a bar that moves with every reply."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(lambda line: progress.console.print(Text(line)))
        self._progress = progress
        self._task = progress.add_task("starting", total=None, phase="")
        self._rounds_done = 0
        # As many as in the last round; in the first one a guess: all train and evaluate.
        self._replies_of_a_round = 0

    def opened(self, num_supernodes: int, run_config: Mapping[str, ConfigValue]) -> None:
        super().opened(num_supernodes, run_config)
        self._replies_of_a_round = 2 * num_supernodes
        self._update()

    def started(self, num_rounds: int | None) -> None:
        super().started(num_rounds)
        self._update()

    def sent(self, messages: Sequence[Message]) -> None:
        super().sent(messages)
        self._update()

    def replied(self, message: Message, reply: Message) -> None:
        super().replied(message, reply)
        self._update()

    def finish(self) -> None:
        if self.server_round is not None:
            self._rounds_done += 1
            self._replies_of_a_round = self.done_in_round
        super().finish()

    def _update(self) -> None:
        part = min(self.done_in_round / max(self._replies_of_a_round, 1), 1.0)
        self._progress.update(
            self._task,
            total=self.num_rounds,
            completed=self._rounds_done + part,
            description=escape(self.title()),
            phase=escape(self.phase_text()),
        )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[phase]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,  # the summary says how long it took
    )


class _PlainHandler(logging.Handler):
    """Warnings to standard error, the rest to standard output, whatever these are at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        print(_log_text(record), file=stream, flush=True)


class _ConsoleHandler(logging.Handler):
    """Lines above the bar; warnings stand out."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        color = "red" if record.levelno >= logging.ERROR else "yellow"
        style = color if record.levelno >= logging.WARNING else ""
        self._console.print(Text(_log_text(record), style=style))


def _log_text(record: logging.LogRecord) -> str:
    text = record.getMessage().expandtabs(4)
    if text.startswith(_WAITING):
        text += " No more will come: stop, and raise --num-supernodes or lower the strategy's minimum."
    return f"{record.levelname}: {text}" if record.levelno >= logging.WARNING else text


@contextmanager
def _flower_log(handler: logging.Handler, verbose: bool) -> Iterator[None]:
    """Send Flower's log to this handler instead of its own coloured one, and leave out its chatter."""

    def shown(record: logging.LogRecord) -> bool:
        nonlocal waiting
        text = record.getMessage()
        repeated, waiting = waiting and text.startswith(_WAITING), text.startswith(_WAITING)  # each second
        if record.levelno >= logging.WARNING:
            return True
        return record.levelno >= logging.INFO and (verbose or text.startswith(_INFO_SHOWN)) and not repeated

    waiting = False
    handler.addFilter(shown)
    logger = logging.getLogger("flwr")
    before = logger.handlers[:]
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = before
