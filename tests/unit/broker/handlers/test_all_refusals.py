"""The refusal of a whole request of any API, with elements in any of its lists: an answer of its version, with an error for each."""

from __future__ import annotations

import re
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


def refusals() -> dict[tuple[str, type[Message]], Refuse]:
    """The refusal of each request, by table of handlers."""
    found: dict[tuple[str, type[Message]], Refuse] = {}
    for module in iter_modules(handlers.__path__):
        family = import_module(f"barnabas.broker.handlers.{module.name}")
        for table in ("HANDLERS", "CONTROLLER_HANDLERS"):
            found |= {(table, request): refuse for request, (_, refuse) in getattr(family, table, {}).items()}
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


def named(kind: type[Struct], name: str) -> dict[str, str]:
    """The name of what a struct is about, where it has one."""
    return {each.name: name for each in kind.FIELDS if isinstance(each.wire, Text) and each.name in ("name", "topic")}


def _long(kind: type[Struct], name: str, element: Any) -> Struct:
    elements: list[Any]
    if isinstance(element, type) and issubclass(element, Struct):
        elements = [element(**named(element, f"n{number}")) for number in range(MANY)]
    elif element is Uuid:
        elements = [number.to_bytes(16, "big") for number in range(MANY)]
    else:
        elements = [f"n{number}" if isinstance(element, Text) else number for number in range(MANY)]
    return kind(**{**named(kind, "n"), name: elements})


def _around(kind: type[Struct], name: str, make: Callable[[], Struct]) -> Struct:
    return kind(**{name: [make()]})


# Lists whose elements have an error each in the answer.
EACH = {
    "ProduceRequest-topic_data.partition_data",
    "ListOffsetsRequest-topics.partitions",
    "OffsetCommitRequest-topics.partitions",
    "DescribeGroupsRequest-groups",
    "CreateTopicsRequest-topics",
    "DeleteTopicsRequest-topic_names",
    "CreatePartitionsRequest-topics",
    "DeleteRecordsRequest-topics.partitions",
    "TxnOffsetCommitRequest-topics.partitions",
    "DeleteGroupsRequest-groups_names",
    "ElectLeadersRequest-topic_partitions.partitions",
    "AlterConfigsRequest-resources",
    "AlterUserScramCredentialsRequest-deletions",
    "AlterClientQuotasRequest-entries",
}
CASES = [
    pytest.param(
        *(kind, refuse, make, version),
        table == "HANDLERS" and f"{kind.__name__}-{path}" in EACH and version == API[kind.API_KEY].versions[0],
        id=f"{table}-{kind.__name__}-{path}-v{version}",
    )
    for (table, kind), refuse in refusals().items()
    for path, make in long_lists(kind)
    for version in sorted({*API[kind.API_KEY].versions})
]


@pytest.mark.parametrize(("kind", "refuse", "make", "version", "each"), CASES)
def test_a_refusal_is_an_answer_of_the_requests_version(
    kind: type[Message], refuse: Refuse, make: Callable[[], Message], version: int, each: bool
) -> None:
    call = Call(make(), version, kind.API_KEY, "c", Connection(), "h")
    answer = refuse(call, REFUSED)
    assert type(answer) is API[kind.API_KEY].response
    encode(answer, version)
    errors = re.findall(rf"error_code=(?:<[^>]*: )?{REFUSED.code:d}\b", repr(answer))
    assert len(errors) >= MANY if each else True, answer


def test_every_list_with_an_error_for_each_element_is_found() -> None:
    assert sum(case.values[-1] is True for case in CASES) == len(EACH)
