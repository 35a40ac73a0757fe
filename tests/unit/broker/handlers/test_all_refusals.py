"""The refusal of a whole request of any API, with elements in any of its lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from barnabas.broker import handlers
from barnabas.broker.api.call import Call, Refuse
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.registry import API
from barnabas.protocol.schema import Message, Struct, encode
from barnabas.protocol.wire import Array, Text, Uuid
from tests.support.broker.calls import Connection

MANY = 3
REFUSED = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")


def refusals() -> dict[type[Message], Refuse]:
    """The refusal of each request, by any listener."""
    found: dict[type[Message], Refuse] = {}
    for module in iter_modules(handlers.__path__):
        family = import_module(f"barnabas.broker.handlers.{module.name}")
        for name in ("HANDLERS", "CONTROLLER_HANDLERS"):
            found |= {request: refuse for request, (_, refuse) in getattr(family, name, {}).items()}
    return found


def long_lists(kind: type[Struct], path: str = "") -> Iterator[tuple[str, Callable[[], Struct]]]:
    """For each list in a message: its name, and what makes a message that is long there alone."""
    for field in kind.FIELDS:
        if not isinstance(field.wire, Array):
            continue
        element: Any = field.wire.element
        yield path + field.name, partial(_long, kind, field.name, element)
        if isinstance(element, type) and issubclass(element, Struct):
            for inner, make in long_lists(element, f"{path}{field.name}."):
                yield inner, partial(_around, kind, field.name, make)


def _long(kind: type[Struct], name: str, element: Any) -> Struct:
    elements: list[Any]
    if isinstance(element, type) and issubclass(element, Struct):
        elements = [element() for _ in range(MANY)]
    elif element is Uuid:
        elements = [number.to_bytes(16, "big") for number in range(MANY)]
    else:
        elements = [f"n{number}" if isinstance(element, Text) else number for number in range(MANY)]
    return kind(**{name: elements})


def _around(kind: type[Struct], name: str, make: Callable[[], Struct]) -> Struct:
    return kind(**{name: [make()]})


REFUSALS = refusals()
CASES = [
    pytest.param(kind, make, version, id=f"{kind.__name__}-{path}-v{version}")
    for kind in sorted(REFUSALS, key=lambda each: each.API_KEY)
    for path, make in long_lists(kind)
    for version in sorted({*API[kind.API_KEY].versions})
]


@pytest.mark.parametrize(("kind", "make", "version"), CASES)
def test_a_refusal_is_an_answer_of_the_requests_version(
    kind: type[Message], make: Callable[[], Message], version: int
) -> None:
    call = Call(make(), version, kind.API_KEY, "c", Connection(), "h")
    answer = REFUSALS[kind](call, REFUSED)
    assert type(answer) is API[kind.API_KEY].response
    encode(answer, version)
