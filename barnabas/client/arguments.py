"""Argument and event loop checks of public calls, from their annotations; types without a rule accept everything.
Checked values are passed on: iterables as lists, pairs as TopicPartition, NumPy integers as int, fractions of ms
rounded up.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import operator
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from importlib import import_module
from numbers import Real
from types import EllipsisType, NoneType, UnionType
from typing import Any, Final, Literal, ParamSpec, SupportsIndex, TypeVar, Union, cast, get_args, get_origin

from barnabas.client.errors import IllegalState
from barnabas.client.loop_affinity import LoopBound
from barnabas.client.types import TopicPartition

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=type[LoopBound])

_ENDS: Final = ("close", "stop")  # end a client whose loop is closed, too

# Smallest and largest value of arguments with these names; others have the bounds of their request.
_INT32_MAX: Final = 2**31 - 1
_RANGES: Final = {
    "timeout_ms": (0, _INT32_MAX),
    "poll_timeout_ms": (0, _INT32_MAX),
    "timestamp_ms": (0, 2**63 - 1),
    "max_records": (1, _INT32_MAX),
    "transaction_records_max": (1, _INT32_MAX),
}

_DURATIONS: Final = ("timeout_ms", "poll_timeout_ms")

# Takes a value and its name in an error; returns the value to use.
_Take = Callable[[Any, str], Any]


class _Wrong(Exception):
    """A value does not have its type."""

    def __init__(self, where: str, expected: str, value: object) -> None:
        # Strings may be secrets: show the rejected value only for enums.
        told = isinstance(value, int | float | NoneType) or (isinstance(value, str) and "one of '" in expected)
        got = repr(value) if told else type(value).__name__
        super().__init__(f"{where} must be {expected}, not {got}")


class _Rule(typing.NamedTuple):
    """Accepted values of a type. `text` follows "must be"."""

    text: str
    take: _Take


_NAMES: Final[dict[object, str]] = {
    int: "an int",
    str: "a str",
    bytes: "bytes",
    bool: "True or False",
    float: "a number",
    NoneType: "None",
    EllipsisType: "...",
}


def as_int(value: object) -> int | None:
    """None for anything but an integer (also NumPy's), and for True and False."""
    if type(value) is int:
        return value
    try:
        return None if isinstance(value, bool) else operator.index(cast("SupportsIndex", value))
    except TypeError:
        return None


def _rule(hint: Any) -> _Rule | None:
    origin = get_origin(hint)
    if origin is Union or origin is UnionType:
        return _any_of(hint)
    if origin is Literal:
        return _choice(get_args(hint))
    if origin in (Mapping, dict):
        return _mapping(*map(_rule, get_args(hint)))
    if origin in (Iterable, Sequence):
        return _items(_rule(get_args(hint)[0]))
    if origin is tuple:
        return _Rule("a tuple", _instance(tuple, "a tuple"))
    if origin is Callable:
        return _Rule("a callable", _callable)
    kind = origin if origin is not None else hint
    if not isinstance(kind, type) or kind is object or getattr(kind, "_is_protocol", False):
        return None
    if kind is TopicPartition:
        return _Rule("a TopicPartition", _partition)
    text = _NAMES.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
    if hasattr(kind, "_fields") or dataclasses.is_dataclass(kind):
        return _Rule(text, _fields_of(kind, text))
    return _Rule(text, _TAKES.get(kind) or _instance(kind, text))


def _instance(kind: type, text: str) -> _Take:
    def take(value: Any, where: str) -> Any:
        if not isinstance(value, kind):
            raise _Wrong(where, text, value)
        return value

    return take


def _int(value: Any, where: str) -> int:
    number = as_int(value)
    if number is None:
        raise _Wrong(where, _NAMES[int], value)
    return number


def _number(value: Any, where: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _Wrong(where, _NAMES[float], value)
    return value


def _bytes(value: Any, where: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _Wrong(where, _NAMES[bytes], value)
    return bytes(value)


_TAKES: Final[dict[object, _Take]] = {int: _int, float: _number, bytes: _bytes}


def _callable(value: Any, where: str) -> Any:
    if not callable(value):
        raise _Wrong(where, "a callable", value)
    return value


def _partition(value: Any, where: str) -> TopicPartition:
    if isinstance(value, tuple) and len(value) == 2:
        topic, partition = value[0], as_int(value[1])
        if isinstance(topic, str) and partition is not None:
            return TopicPartition(topic, partition)
    raise _Wrong(where, "a TopicPartition, such as TopicPartition('orders', 0)", value)


def _choice(choices: tuple[Any, ...]) -> _Rule:
    text = f"one of {', '.join(map(repr, choices))}"

    def take(value: Any, where: str) -> Any:
        for each in choices:
            if value == each and isinstance(value, type(each)) and isinstance(value, bool) is isinstance(each, bool):
                return each
        raise _Wrong(where, text, value)

    return _Rule(text, take)


def _any_of(hint: Any) -> _Rule | None:
    rules = [_rule(each) for each in get_args(hint)]
    known = [each for each in rules if each is not None]
    if len(known) != len(rules):
        return None
    texts = dict.fromkeys(each.text for each in known)
    if any(" of " in each or " from " in each for each in texts) and texts.pop("None", 0) is None:
        texts = {"None": None, **texts}
    text = " or ".join(texts)

    def take(value: Any, where: str) -> Any:
        for each in known:
            try:
                return each.take(value, where)
            except _Wrong as wrong:
                # The error of an item or field is more precise than that of the whole, such as "each of topics must be …".
                if not str(wrong).startswith(f"{where} must be"):
                    raise
        raise _Wrong(where, text, value)

    return _Rule(text, take)


def _items(rule: _Rule | None) -> _Rule:
    text = "a list" if rule is None else f"a list of {rule.text.removeprefix('a ').removeprefix('an ')}"

    def take(value: Any, where: str) -> list[Any]:
        if isinstance(value, str | bytes | TopicPartition) or not isinstance(value, Iterable):
            raise _Wrong(where, text, value)
        return list(value) if rule is None else [rule.take(each, f"each of {where}") for each in value]

    return _Rule(text, take)


def _mapping(key: _Rule | None, value: _Rule | None) -> _Rule:
    text = "a dict" + (f" from {key.text}" if key else "") + (f" to {value.text}" if value else "")

    def take(given: Any, where: str) -> dict[Any, Any]:
        if not isinstance(given, Mapping):
            raise _Wrong(where, text, given)
        return {
            key.take(k, f"each key of {where}") if key else k: value.take(v, f"each value of {where}") if value else v
            for k, v in given.items()
        }

    return _Rule(text, take)


def _fields_of(kind: type, text: str) -> _Take:
    rules: dict[str, _Rule] | None = None

    def take(value: Any, where: str) -> Any:
        nonlocal rules
        if not isinstance(value, kind):
            raise _Wrong(where, text, value)
        if rules is None:
            found = {name: _rule(hint) for name, hint in typing.get_type_hints(kind).items()}
            rules = {name: rule for name, rule in found.items() if rule is not None}
        for name, rule in rules.items():
            rule.take(getattr(value, name), f"{name} of {where}")
        return value

    return take


class _Names(Mapping[str, Any]):
    """Names imported for annotations only; they are public names of the client."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(import_module("barnabas.client"), name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Call:
    """The checks of one function or method."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self.name = name
        self._read = False
        self._positional: list[tuple[str, _Take]] = []
        self._rest: tuple[str, _Take] = ("", _anything)  # of *arguments
        self.named: dict[str, _Take] = {}

    def _read_annotations(self) -> None:
        hints = typing.get_type_hints(self._function, localns=cast("dict[str, Any]", _Names()))
        for name, parameter in inspect.signature(self._function).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            rule = _rule(hints[name]) if name in hints else None
            take = _anything if rule is None else rule.take
            take = _within(take, *_RANGES[name]) if name in _RANGES else take
            take = _whole_ms(take) if name in _DURATIONS else take
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = f"each of {name}", take
                continue
            self.named[name] = take
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self._positional.append((name, take))
        self._read = True

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments to use. Raises IllegalState for a wrong type."""
        if not self._read:
            self._read_annotations()
        try:
            given = [take(value, name) for (name, take), value in zip(self._positional, args, strict=False)]
            if len(given) < len(args):
                where, take = self._rest
                given += [take(value, where) for value in args[len(given) :]]
            for name in kwargs:
                if name in self.named:
                    kwargs[name] = self.named[name](kwargs[name], name)
        except _Wrong as wrong:
            raise IllegalState(f"{self.name}: {wrong}") from None
        return given, kwargs


def _anything(value: Any, _where: str) -> Any:
    return value


def _within(take: _Take, low: int, high: int) -> _Take:
    def within(value: Any, where: str) -> Any:
        value = take(value, where)
        if value is not None and not low <= value <= high:
            raise _Wrong(where, f"from {low} to {high}", value)
        return value

    return within


def _whole_ms(take: _Take) -> _Take:
    """Rounds fractions of a millisecond up, as in `timeout_ms=seconds * 1000`."""
    return lambda value, where: take(
        math.ceil(value) if isinstance(value, float) and math.isfinite(value) else value, where
    )


def checked(function: Callable[P, R], name: str = "", *, at_home: bool = False) -> Callable[P, R]:
    """Decorates a function or coroutine function: a wrong argument raises IllegalState first.

    Args:
        name: of the call in errors; by default the name of the function.
        at_home: a client's method, which runs only on that client's event loop.
    """
    call = _Call(function, name or function.__qualname__.removesuffix(".__init__"))
    if not inspect.iscoroutinefunction(function):

        @wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            if at_home:
                args[0]._home.check(call.name)
            given, named = call.take(args, kwargs)
            return function(*given, **named)

        return cast("Callable[P, R]", plain)

    running_loop = asyncio.get_running_loop

    @wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        if at_home and args[0]._home.loop is not running_loop():
            args[0]._home.check(call.name)
        if len(args) == 1 and not kwargs:  # a method without arguments: there is nothing to check
            return await cast("Callable[..., Awaitable[Any]]", function)(*args)
        given, named = call.take(args, kwargs)
        return await cast("Awaitable[Any]", function(*given, **named))

    return cast("Callable[P, R]", coroutine)


def checks_calls(*but: str) -> Callable[[T], T]:
    """Decorates a client's public methods, also inherited ones, except those named in `but`."""

    def decorate(kind: T) -> T:
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            if name not in but and not name.startswith("_"):
                setattr(kind, name, checked(member, f"{kind.__name__}.{name}", at_home=name not in _ENDS))
        kind.__init__.__qualname__ = (
            f"{kind.__name__}.__init__"  # Python's own errors name it, also if a base class defines it
        )
        return kind

    return decorate
