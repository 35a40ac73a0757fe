"""Extension: state of the kit inside running brokers: faults, cuts, disk faults, clock offsets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from barnabas.testing.errors import KitError, KitTimeout

Commands = Sequence[tuple[str, dict[str, Any]]]  # names of node_commands.py with their arguments, which are JSON values


class Extension:
    """A stateless extension; subclasses override hooks. A restarted broker starts empty, a paused one misses commands: hooks restore the state."""

    @property
    def leaves_traces(self) -> bool:
        """Whether brokers may behave differently because of it; then no other test reuses them."""
        return True

    def before_start(self, broker_id: int) -> Commands:
        """Commands that a broker runs before its node starts."""
        return ()

    def explain(self) -> str:
        """A possible reason for a missed deadline; "" if none."""
        return ""

    def cut_off(self) -> frozenset[int]:
        """Running brokers that cannot reach the others."""
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
    """Waits until pending reports of brokers are processed; at once if the cluster has ended. Raises KitTimeout."""
    try:
        wait(settled)
    except KitTimeout:
        raise
    except KitError:  # the cluster does not run, or the kit's own thread asks
        return
