"""Responses that carry one error: for the whole request, or for each element that the request names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from barnabas.broker.api.call import Call
from barnabas.errors import BrokerError
from barnabas.protocol import registry
from barnabas.protocol.schema import Message, Struct
from barnabas.protocol.wire import Array, Field

# Fields of an element that say which one it is: the response repeats them.
_KEYS: Final = (
    "name",
    "topic",
    "topic_id",
    "partition",
    "partition_index",
    "producer_id",
    "resource_type",
    "resource_name",
    "entity",
)


def refuse(call: Call[Message], error: BrokerError) -> Message:
    """The response with the error of the whole request."""
    response = registry.API[call.api_key].response()
    _set_error(response, error)
    return response


def refuse_each(call: Call[Message], error: BrokerError, elements: Iterable[object] | None = None) -> Message:
    """The response with an error for each element of the request, and for the whole request if it has a field for that.

    `elements` are answered in place of those of the request.
    """
    response = refuse(call, error)
    _refuse_elements(_elements(call.request) if elements is None else elements, response, error)
    return response


def _set_error(answer: Struct, error: BrokerError) -> None:
    for name, value in (("error_code", error.code), ("error_message", error.message)):
        if hasattr(answer, name):
            setattr(answer, name, value)


def _elements(asked: Struct) -> Iterable[object]:
    """The elements of the first list; none without a list, or with null."""
    names = (each.name for each in asked.FIELDS if isinstance(each.wire, Array))
    return getattr(asked, next(names, ""), None) or ()


def _refuse_elements(elements: Iterable[object], answer: Struct, error: BrokerError) -> None:
    """Answers the elements, and those in them."""
    field = _field_of_errors(type(answer))
    if field is None:
        return
    answers: list[Struct] = getattr(answer, field.name)
    for element in elements:
        refused: Struct = field.wire.element()
        _set_error(refused, error)
        if isinstance(element, Struct):
            for name in _KEYS:
                if hasattr(refused, name) and hasattr(element, name):
                    setattr(refused, name, getattr(element, name))
            _refuse_elements(_elements(element), refused, error)
        else:  # the number or the name itself
            setattr(refused, next(each.name for each in refused.FIELDS if not each.name.startswith("error_")), element)
        answers.append(refused)


@cache
def _field_of_errors(cls: type[Struct]) -> Field | None:
    """The list of a response, or of an element of it, whose elements carry errors."""
    for field in cls.FIELDS:
        element = field.wire.element if isinstance(field.wire, Array) else None
        if not (isinstance(element, type) and issubclass(element, Struct)):
            continue
        if hasattr(element, "error_code") or _field_of_errors(element) is not None:
            return field
    return None
