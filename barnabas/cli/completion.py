"""`barnabas completion SHELL`: a script with which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

__all__ = ["completion"]


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that reads the script.")],
) -> int:
    """Print a script that completes commands and options in a shell."""
    from barnabas.cli.app import app  # it imports this module

    print(app.generate_completion(prog_name="barnabas", shell=shell))
    return 0
