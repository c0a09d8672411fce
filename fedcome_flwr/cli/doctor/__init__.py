"""`fedcome doctor`: what goes wrong most between an app, a machine and a SuperLink, looked at before a run."""

from .app_checks import check_app
from .finding import Finding, State
from .link import Link, read_link
from .link_checks import check_link
from .shown import shown_findings

__all__ = ["Finding", "Link", "State", "check_app", "check_link", "read_link", "shown_findings"]
