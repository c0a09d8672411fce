"""What `fedcome doctor` prints: a line for each finding, and what to do next below it."""

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .finding import Finding

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "open": "dim"}
_STATE_WIDTH, _CHECK_WIDTH = 7, 11


def shown_findings(findings: Iterable[Finding]) -> int:
    """Print findings as they come, wrapped on a terminal only; return how many are problems."""
    console = Console(highlight=False)
    problems = 0
    for finding in findings:
        problems += finding.state == "problem"
        if not console.is_terminal:
            print(f"{finding.state:<{_STATE_WIDTH}}  {finding.check:<{_CHECK_WIDTH}}  {finding.text}", flush=True)
            if finding.advice:
                print(f"{'':<{_STATE_WIDTH + _CHECK_WIDTH + 4}}-> {finding.advice}", flush=True)
            continue
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(width=_STATE_WIDTH)
        line.add_column(width=_CHECK_WIDTH)
        line.add_column()
        line.add_row(Text(finding.state, style=_STYLES[finding.state]), finding.check, Text(finding.text))
        console.print(line)
        if finding.advice:
            console.print(Padding(Text(f"→ {finding.advice}"), (0, 0, 0, _STATE_WIDTH + _CHECK_WIDTH + 4)))
    return problems
