"""Responses that carry one error: for the whole request, or for each element that the request names."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from barnabas.broker.api.call import Call
from barnabas.errors import BrokerError
from barnabas.protocol import registry
from barnabas.protocol.schema import Message, Struct
from barnabas.protocol.wire import Array, Field

# Fields of an element that say which one it is: the response repeats them.
_KEYS: Final = frozenset(
    {
        "name",
        "topic",
        "topic_id",
        "partition_index",
        "partition",
        "resource_type",
        "resource_name",
        "producer_id",
        "entity",
    }
)


def refuse(call: Call[Any], error: BrokerError) -> Message:
    """The response with the error of the whole request."""
    response = registry.API[call.api_key].response()
    _set_error(response, error)
    return response


def refuse_each(call: Call[Any], error: BrokerError, asked: Message | None = None) -> Message:
    """The response with an error for each element of the request, and for the whole request if it has a field for that.

    `asked` has the elements to answer [default: those of the request].
    """
    response = refuse(call, error)
    _refuse_elements(call.request if asked is None else asked, response, error)
    return response


def _set_error(answer: Any, error: BrokerError) -> None:
    if hasattr(answer, "error_code"):
        answer.error_code = error.code
    if hasattr(answer, "error_message"):
        answer.error_message = error.message


def _refuse_elements(asked: Any, answer: Any, error: BrokerError) -> None:
    """Answers each element of the first list in `asked`, and the elements in it."""
    cls: type[Struct] = type(answer)
    field = _field_of_errors(cls)
    if field is None:
        return
    answers = getattr(answer, field.name)
    first = next(each.name for each in type(asked).FIELDS if isinstance(each.wire, Array))
    for element in getattr(asked, first) or ():
        refused = field.wire.element()
        _set_error(refused, error)
        names = [each.name for each in refused.FIELDS]
        if isinstance(element, (int, str)):
            setattr(refused, next(name for name in names if not name.startswith("error_")), element)
        else:
            for name in _KEYS.intersection(names):
                setattr(refused, name, getattr(element, name))
            _refuse_elements(element, refused, error)
        answers.append(refused)


@cache
def _field_of_errors(cls: type[Struct]) -> Field | None:
    """The list of a response, or of an element of it, whose elements carry errors."""
    return next(
        (each for each in cls.FIELDS if isinstance(each.wire, Array) and _carries_errors(each.wire.element)), None
    )


def _carries_errors(element: Any) -> bool:
    if not (isinstance(element, type) and issubclass(element, Struct)):
        return False
    return hasattr(element, "error_code") or _field_of_errors(element) is not None
