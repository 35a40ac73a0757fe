"""Shared parts of the client commands: the bootstrap option, and errors as one line on stderr."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Annotated, Any

from cyclopts import Parameter

from barnabas.client.errors import KafkaError
from barnabas.runtime.loop import run

__all__ = ["Bootstrap", "Settings", "key_values", "worked"]

Bootstrap = Annotated[str, Parameter(name=["--bootstrap", "-b"], help="HOST:PORT of a broker, or several with commas.")]
Settings = Annotated[tuple[str, ...], Parameter(negative=(), help="key=value, Kafka's config names; may be repeated.")]


def worked(command: str, work: Coroutine[Any, Any, None]) -> int:
    """Runs a command's work and returns its exit code; prints a failure in one line on stderr."""
    try:
        run(work)
    except KafkaError as error:
        print(f"barnabas {command}: {error}", file=sys.stderr)
        return 1
    return 0


def key_values(command: str, assignments: tuple[str, ...]) -> dict[str, str]:
    """Parses `key=value` arguments into a mapping; exits with 2 if one has another form."""
    for assignment in assignments:
        if "=" not in assignment:
            print(f"barnabas {command}: {assignment!r} is not key=value", file=sys.stderr)
            raise SystemExit(2)
    return dict(assignment.split("=", 1) for assignment in assignments)
