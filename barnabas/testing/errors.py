"""Errors of the test kit, and spelling suggestions. Each text names the object, its value and the correct form."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from barnabas.errors import BarnabasError

F = TypeVar("F", bound=Callable[..., Any])

ADMIN_CLIENT_ID = "barnabas-kit"  # of the kit's own admin client
CHOICES_SHOWN = 12  # of known words in one text, beside the nearest one
CHOICES_SHOWN_ALONE = 24  # of known words where none is near
LIKENESS_MIN = 0.6  # of difflib
SECONDS_MAX = 86_400  # of one call

_patience = 1.0


class KitError(BarnabasError):
    """Wrong use of the test kit, or an operation that this cluster cannot do."""


class KitTimeout(KitError, TimeoutError):
    """Something did not happen in time; the text names it."""


class BrokerKilledError(KitError):
    """A fault of the test ended the broker during the operation; the text names it."""


class NotPossible(KitError):
    """The cluster's mode cannot do this; the text names the modes that can."""


class LeakedClientWarning(UserWarning):
    """A test left a client connected; the text names both."""


def patience() -> float:
    """Factor on the kit's deadlines (--kafka-patience)."""
    return _patience


def set_patience(factor: float) -> None:
    global _patience
    _patience = factor


def checked_number(what: str, value: object, least: int = 0) -> int:
    """Raises KitError, beginning with `what`, unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise KitError(f"{what}={value!r}: write a whole number from {least}")
    return value


def checked_seconds(what: str, value: object, *, zero: bool = False) -> float:
    """Returns seconds times patience. Raises KitError, beginning with `what`, for anything but a positive number; `zero` accepts 0, too."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= SECONDS_MAX
        or not (value or zero)
    ):
        raise KitError(
            f"{what}={value!r}: write a number of seconds {'from' if zero else 'above'} 0, at most {SECONDS_MAX:,}"
        )
    return value * _patience


def broker_names(ids: Sequence[int]) -> str:
    """ "broker 1" or "brokers 1, 2, 3"."""
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def unknown(what: str, word: object, known: Iterable[object]) -> str:
    """A sentence about an unknown word, the nearest known one, and the known ones if they are few.

    >>> unknown("mode", "proces", ["thread", "process"]) "unknown mode 'proces'; did you mean 'process'? Known: 'thread', 'process'"
    """
    from difflib import get_close_matches

    words = list(dict.fromkeys(known))
    folded = {str(each).lower(): str(each) for each in words}
    near = [folded[each] for each in get_close_matches(str(word).lower(), folded, n=1, cutoff=LIKENESS_MIN)]
    text = f"unknown {what} {word!r}"
    if near:
        text += f"; did you mean {near[0]!r}?"
    if not words:
        text += "; there is none"
    elif len(words) <= (CHOICES_SHOWN if near else CHOICES_SHOWN_ALONE):
        text += f"{'' if near else '.'} Known: {', '.join(repr(each) for each in words)}"
    return text


class NearestNames:
    """Base of handles: an unknown attribute raises AttributeError with the nearest known one."""

    _also: ClassVar[str] = ""  # what the error says in addition

    if not TYPE_CHECKING:  # a type checker refuses unknown attributes itself

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            raise AttributeError(unknown(f"attribute of {type(self).__name__}", name, known) + self._also)


def named_arguments(function: F) -> F:
    """Makes an unknown keyword argument raise TypeError with the nearest known one."""
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{function.__qualname__.removesuffix('.__init__').replace('Aio.', '.')}(): {unknown('option', name, known)}"
                )
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]  # it has the signature of the wrapped function
