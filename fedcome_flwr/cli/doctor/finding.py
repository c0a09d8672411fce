"""What a check found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem", "open"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    check
        What was looked at, in a word or two.
    state
        ``"ok"``; ``"warning"``: it may work; ``"problem"``: it will not; ``"open"``: it could not be looked at.
    text
        What was found.
    advice
        What to do next, where something is to be done.
    """

    check: str
    state: State
    text: str
    advice: str = ""
