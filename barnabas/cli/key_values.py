"""Arguments of the form `key=value`, several of which a command takes."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from barnabas.cli.session import wrong_call

__all__ = ["Settings", "key_values"]

Settings = Annotated[tuple[str, ...], Parameter(negative=(), help="key=value, Kafka's config names; may be repeated.")]


def key_values(command: str, assignments: tuple[str, ...]) -> dict[str, str]:
    """Parses `key=value` arguments into a mapping; exits with 2 if one has another form."""
    for assignment in assignments:
        if "=" not in assignment:
            raise SystemExit(wrong_call(command, f"{assignment!r} is not key=value"))
    return dict(assignment.split("=", 1) for assignment in assignments)
