"""From kept runs to tables, figures, claims."""

from examples.paper.protocol import Scale
from examples.paper.runs import Choice


def report(target: str, scale: Scale, choice: Choice) -> None:
    """Write what the kept runs give."""
