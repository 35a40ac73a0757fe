"""Event loop: uvloop if installed, else asyncio's own. No other module chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # Windows, or an interpreter for which uvloop has no wheel
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` on a new loop. Ctrl-C cancels it."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
