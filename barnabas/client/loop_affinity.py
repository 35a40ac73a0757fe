"""Event loop affinity of a client: calls on another loop are rejected, where its connections would never answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn, SupportsIndex, TypeVar

from barnabas.client.errors import IllegalState

log = logging.getLogger("barnabas.client")

_ENDS: Final = ("close", "stop")  # end a client whose loop is closed, too


class HomeLoop:
    """The event loop of one client; None before its start and after its end."""

    __slots__ = ("loop",)

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        self.loop = asyncio.get_running_loop()

    def leave(self) -> None:
        self.loop = None

    def check(self, call: str) -> None:
        """Raises IllegalState on another loop. Without any running loop, calls that do not wait are allowed."""
        home = self.loop
        if home is None:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is home or (here is None and not home.is_running()):
            return
        if home.is_closed():
            state = ", which is closed now"
        elif home.is_running():
            state = ", which runs in another thread: use asyncio.run_coroutine_threadsafe(..., that loop)"
        else:
            state = ", which does not run now"
        raise IllegalState(
            f"{call}: this client was started on another event loop{state}. A client works only on the loop of its start(): "
            "make a client for each event loop, or do all work in one asyncio.run()"
        )

    def is_closed(self, call: str) -> bool:
        """Whether the loop is closed: the client cannot leave its group or close cleanly. Raises IllegalState."""
        if self.loop is not None and self.loop.is_closed():
            return True
        self.check(call)
        return False


class LoopBound:
    """Base of the clients: bound to one event loop, not copyable, must be closed."""

    _home: HomeLoop

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{_one(kind)} cannot be copied or pickled, because it has connections: make another {kind}")

    def __del__(self, warn: Any = warnings.warn) -> None:
        home: HomeLoop | None = getattr(self, "_home", None)  # absent if a setting was rejected
        if home is None or home.loop is None:
            return
        text = f"{_one(type(self).__name__)} was not closed{self._unfinished()}: await its stop() on the event loop of its start(), or use 'async with'"
        warn(text, ResourceWarning, source=self)
        log.warning(text)

    def _unfinished(self) -> str:
        return ""


def _one(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


T = TypeVar("T", bound=type[LoopBound])


def bound_to_loop(*but: str) -> Callable[[T], T]:
    """Decorates a client: its public methods, also inherited ones, raise IllegalState on another event loop than that of its start,
    and for a str in place of a list, which would stand for the list of its characters. Those in `but` check for themselves."""

    def decorate(kind: T) -> T:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name not in but and not name.startswith("_"):
                setattr(kind, name, _bound(method, f"{kind.__name__}.{name}", anywhere=name in _ENDS))
        # Python's own errors name the client, also if a base class defines it.
        kind.__init__.__qualname__ = f"{kind.__name__}.__init__"
        return kind

    return decorate


def _bound(method: Callable[..., Any], call: str, *, anywhere: bool) -> Callable[..., Any]:
    code = method.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    lists = [
        (place, name)
        for place, name in enumerate(names)
        if str(method.__annotations__.get(name)).startswith(("Iterable[", "Sequence["))
    ]

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not anywhere:
            args[0]._home.check(call)
        for place, name in lists:
            if isinstance(args[place] if place < len(args) else kwargs.get(name), str):
                raise IllegalState(f"{call}: {name} must be a list, not a str")

    if not inspect.iscoroutinefunction(method):

        @wraps(method)
        def plain(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return method(*args, **kwargs)

        return plain

    @wraps(method)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return await method(*args, **kwargs)

    return coroutine
