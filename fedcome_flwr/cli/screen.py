"""Show a run: a progress bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from flwr.app import Message
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from ..simulation.observer import ConfigValue
from .flower_log import ConsoleHandler, PlainHandler, flower_log
from .rounds import RoundLines


@contextmanager
def shown_run(*, plain: bool, verbose: bool) -> Iterator[RoundLines]:
    """Give the observer that shows a run; Flower's log is shown too until the ``with`` block ends."""
    console = Console(highlight=False)
    if plain or not console.is_terminal or not sys.stdout.isatty() or console.is_dumb_terminal:
        lines = RoundLines(lambda line: print(line, flush=True))
        with flower_log(PlainHandler(), verbose=verbose):
            yield lines
            lines.finish()
        return
    with _progress(console) as progress, flower_log(ConsoleHandler(progress.console), verbose=verbose):
        bar = _Bar(progress)
        yield bar
        bar.finish()


class _Bar(RoundLines):
    """The lines of the rounds above a bar that moves with every reply."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(lambda line: progress.console.print(Text(line)))
        self._progress = progress
        self._task = progress.add_task("starting", total=None, phase="", headline="")
        self._rounds_done = 0
        # As many as in the last round; in the first one a guess: all train and evaluate.
        self._replies_of_a_round = 0

    def opened(self, num_supernodes: int, run_config: Mapping[str, ConfigValue]) -> None:
        super().opened(num_supernodes, run_config)
        self._replies_of_a_round = 2 * num_supernodes
        self._update()

    def started(self, num_rounds: int | None) -> None:
        super().started(num_rounds)
        self._rounds_done = 0  # a ServerApp may start a second strategy
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
        self._update()

    def _update(self) -> None:
        between = "finishing" if self._rounds_done else "starting"
        part = min(self.done_in_round / max(self._replies_of_a_round, 1), 1.0)
        self._progress.update(
            self._task,
            total=self.num_rounds,
            completed=self._rounds_done + part,
            description=escape(self.title() or between),
            phase=escape(self.phase_text()),
            headline=escape(self.headline),
        )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[phase]}"),
        TextColumn("{task.fields[headline]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,  # the summary says how long it took
    )
