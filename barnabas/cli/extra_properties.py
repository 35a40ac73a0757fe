"""`-X key=value`: client properties of Kafka's names for one call of `produce` or `consume`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from barnabas.cli.client_properties import (
    CLIENT_PROPERTIES,
    ClientKind,
    ClientProperties,
    WrongCall,
    security_arguments,
)

Properties = Annotated[
    tuple[str, ...],
    Parameter(name=["--property", "-X"], negative=(), help="key=value, a client property of Kafka; may be repeated."),
]


def extra_arguments(kind: ClientKind, assignments: tuple[str, ...]) -> dict[str, Any]:
    """The properties as keyword arguments of a client.

    Raises WrongCall: one is not key=value, has an invalid value, or is not known to this kind of client.
    """
    pairs: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise WrongCall(f"-X {assignment!r} is not key=value")
        known = CLIENT_PROPERTIES.get(name)
        if not name.startswith(("security.protocol", "ssl.", "sasl.")) and (known is None or kind not in known.kinds):
            mine = [each for each, entry in CLIENT_PROPERTIES.items() if kind in entry.kinds]
            from difflib import get_close_matches  # here, because its import takes longer than a small command

            near = get_close_matches(name, mine, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise WrongCall(f"-X {name}: no property of a {kind} here{hint}")
        pairs[name] = value
    properties = ClientProperties(pairs, "-X")
    return {**properties.arguments(kind), **security_arguments([properties])}
