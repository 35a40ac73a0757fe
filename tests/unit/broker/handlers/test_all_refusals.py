"""The refusal of a whole request of any API: with very many elements in any of its lists, no turn makes more than a part of the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from types import FrameType, GeneratorType
from typing import Any

import pytest

from barnabas.broker import handlers
from barnabas.broker.api.call import Call, Refuse
from barnabas.broker.scheduling.slices import WorkResult, advance
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.produce import ProduceRequest
from barnabas.protocol.registry import API
from barnabas.protocol.schema import Message, Struct
from barnabas.protocol.wire import Array, Text, Uuid
from tests.support.broker.calls import Connection

MANY = 20_000
CALLS_MAX = 10_000  # of Python functions in one turn
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


def calls_of(run: Callable[[], Any]) -> tuple[Any, int]:
    """What a function returns, and the number of Python functions that it has called."""
    calls = 0

    def count(_frame: FrameType, event: str, _of: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        result = run()
    finally:
        sys.setprofile(None)
    return result, calls


@pytest.mark.parametrize(("kind", "make", "version"), CASES)
def test_no_turn_makes_more_than_a_part_of_a_long_refusal(
    kind: type[Message], make: Callable[[], Message], version: int
) -> None:
    request = make()
    if isinstance(request, ProduceRequest):
        request.acks = 1  # with 0 the refusal closes the connection
    call = Call(request, version, kind.API_KEY, "c", Connection(), "h")
    answer, calls = calls_of(partial(REFUSALS[kind], call, REFUSED))
    longest = calls
    while isinstance(answer, GeneratorType):
        rest, calls = calls_of(partial(advance, answer))
        answer = rest.result if isinstance(rest, WorkResult) else rest
        longest = max(longest, calls)
    assert longest <= CALLS_MAX
    assert answer is None or isinstance(answer, Message)
