"""Confirmation of what cannot be undone: a question on a terminal, or --yes."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), help="Do it without a question.")]


def confirmed(question: str) -> bool:
    """Asks on the terminal; only "y" or "yes" confirms. Returns False without a question if there is no terminal to ask on."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
