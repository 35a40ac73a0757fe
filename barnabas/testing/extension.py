"""Extension: a part of the kit that keeps something in running brokers: faults, cuts, the state of disks, an offset of the clock.

A broker that restarts is a new host that knows nothing. It gets the commands of `before_start` before its node takes the first step,
and `on_started` is awaited when it serves. A paused broker takes no command; `on_resumed` is awaited when it continues.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from barnabas.testing.errors import KitError, KitTimeout

Commands = Sequence[tuple[str, dict[str, Any]]]  # names of node_commands.py with their arguments, which are JSON values


class Extension:
    """An extension that keeps nothing; a subclass overrides what it needs."""

    @property
    def leaves_traces(self) -> bool:
        """Whether brokers may behave otherwise because of it, now or later; then no other test gets them."""
        return True

    def before_start(self, broker_id: int) -> Commands:
        """The commands that a broker runs before its node starts."""
        return ()

    def explain(self) -> str:
        """What may explain that a call misses its deadline; empty if nothing."""
        return ""

    def cut_off(self) -> frozenset[int]:
        """Brokers that run, but cannot reach the others."""
        return frozenset()

    async def on_started(self, broker_id: int) -> None:
        """A broker has started again and serves."""

    async def before_kill(self, broker_id: int) -> None:
        """A running broker is killed next. It must not take long."""

    async def on_resumed(self, broker_id: int) -> None:
        """A broker has missed commands: a paused one continues, or one serves that started while the test went on."""

    async def verified(self) -> None:
        """A test that has passed ends. Raises KitError if something that it has written met nothing, and had to."""

    async def on_test_end(self) -> None:
        """A test that has shared its brokers with others ends: what it has put into them goes."""

    def on_event(self, broker_id: int, name: str, value: Any) -> None:
        """A broker has emitted something, for this part or for another one."""


def settle(wait: Callable[[Coroutine[Any, Any, None]], None], settled: Coroutine[Any, Any, None]) -> None:
    """Waits until what brokers have to tell is here. A cluster that has ended tells no more. Raises KitTimeout."""
    try:
        wait(settled)
    except KitTimeout:
        raise
    except KitError:  # the cluster does not run, or the kit's own thread asks
        return
