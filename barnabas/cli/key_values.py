"""Arguments of the form `key=value`, several of which a command takes."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall

Settings = Annotated[tuple[str, ...], Parameter(negative=(), help="key=value, Kafka's config names; may be repeated.")]


def key_values(assignments: tuple[str, ...]) -> dict[str, str]:
    """Parses `key=value` arguments into a mapping; raises WrongCall if one has another form."""
    for assignment in assignments:
        if "=" not in assignment:
            raise WrongCall(f"{assignment!r} is not key=value")
        name, _, value = assignment.partition("=")
        if not name.endswith((".ms", ".bytes")) or value.lstrip("-").isdecimal():
            continue
        from barnabas.cli.throttles import as_rate  # here, because few calls write a unit
        from barnabas.cli.times import parse_duration

        for suffix, read, unit in ((".ms", parse_duration, "milliseconds"), (".bytes", as_rate, "bytes")):
            if name.endswith(suffix):
                try:
                    number = read(value)
                except ValueError:
                    continue
                raise WrongCall(f"{assignment}: its unit is {unit}; write {name}={number}")
    return dict(assignment.split("=", 1) for assignment in assignments)
