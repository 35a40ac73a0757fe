"""The watch of the loop: stalls, the longest pause, idle time, on a clock of the test."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from barnabas.broker.metrics.endpoint import Health
from barnabas.broker.metrics.loop_watch import SAMPLE_MS, STALLED_MS, TICK_MS, LoopWatch


class Loop:
    """A clock, the one timer of the watch, and the CPU time of the thread."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.cpu_s = 0.0
        self.due: Callable[[], None] = lambda: None
        reactor: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms), call_later=self._call_later, failure=None
        )
        self.reactor = reactor
        self.watch = LoopWatch(reactor, lambda: self.cpu_s)
        self.watch.start()

    def _call_later(self, _delay_ms: int, callback: Callable[[], None]) -> Any:
        self.due = callback
        return SimpleNamespace(cancel=lambda: None)

    def tick(self, late_ms: int = 0, *, busy: float = 0.0) -> None:
        """The timer runs, `late_ms` too late; the thread ran for a share of the time."""
        self.now_ms += TICK_MS + late_ms
        self.cpu_s += (TICK_MS + late_ms) / 1000 * busy
        self.due()


def test_a_stall_is_told_for_a_while() -> None:
    loop = Loop()
    loop.tick(499)
    assert (loop.watch.recent_stall(), loop.watch.stalls, loop.watch.longest_pause_ms) == (None, 0, 499)
    loop.tick(700)
    assert (loop.watch.recent_stall(), loop.watch.stalls) == ((700, 0), 1)
    node: Any = SimpleNamespace(
        reactor=loop.reactor,
        log_dirs=[],
        config=SimpleNamespace(roles=("controller",)),
        current_image=SimpleNamespace(image=SimpleNamespace(offset=1)),
        quorum=SimpleNamespace(leader_id=1),
    )
    loop.tick()
    assert Health(node, loop.watch).ready() == "the loop stalled for 700 ms, 0.1 s ago"
    for _ in range(STALLED_MS // TICK_MS):
        loop.tick()
    assert Health(node, loop.watch).ready() is None
    assert loop.watch.longest_pause_ms == 700


def test_idle_time_is_that_of_the_last_minute() -> None:
    loop = Loop()
    for _ in range(600):
        loop.tick(busy=0.25)
    assert abs(loop.watch.idle() - 0.75) < 0.01
    for _ in range((60_000 + SAMPLE_MS) // TICK_MS):
        loop.tick(busy=1.0)
    assert loop.watch.idle() < 0.01
