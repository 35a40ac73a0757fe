"""LoopWatch: delay of the loop's timers, and its idle time. Waits for the disk count as idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.broker.scheduling.reactor import STALL_MS, Reactor
from barnabas.broker.scheduling.timers import Timer

TICK_MS: Final = 100
SAMPLE_MS: Final = 5_000
SAMPLES: Final = 13  # the last minute
STALLED_MS: Final = 10_000  # how long a stall is shown


class LoopWatch:
    """Delays and CPU time of the loop; `cpu_s` returns the CPU time of its thread."""

    def __init__(self, reactor: Reactor, cpu_s: Callable[[], float]) -> None:
        self._reactor = reactor
        self._cpu_s = cpu_s
        self._timer: Timer | None = None
        self._due_ms = 0
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES)  # time, CPU time
        self._stall = (0, 0)  # duration, end
        self.on_tick: list[Callable[[int], None]] = []  # called at every tick
        self.longest_pause_ms = 0  # longest delay of a timer since the start
        self.stalls = 0  # delays longer than any work takes

    def start(self) -> None:
        self._samples.append((self._reactor.clock.monotonic_ms(), self._cpu_s()))
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due_ms = self._reactor.clock.monotonic_ms() + TICK_MS
        self._timer = self._reactor.call_later(TICK_MS, self._tick)

    def _tick(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        late_ms = now_ms - self._due_ms
        self.longest_pause_ms = max(self.longest_pause_ms, late_ms)
        if late_ms > STALL_MS:
            self.stalls += 1
            self._stall = (late_ms, now_ms)
        if now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, self._cpu_s()))
        for callback in self.on_tick:
            callback(now_ms)
        self._arm()

    def recent_stall(self) -> tuple[int, int] | None:
        """Duration of the latest stall and the time since, both in ms; None if it was more than STALLED_MS ago."""
        duration_ms, ended_ms = self._stall
        since_ms = self._reactor.clock.monotonic_ms() - ended_ms
        return (duration_ms, since_ms) if duration_ms and since_ms < STALLED_MS else None

    def idle(self) -> float:
        """The share of the last minute in which the loop's thread did not run, 0 to 1."""
        if not self._samples:
            return 1.0
        then_ms, then_s = self._samples[0]
        passed_s = (self._reactor.clock.monotonic_ms() - then_ms) / 1000
        return min(max(1.0 - (self._cpu_s() - then_s) / passed_s, 0.0), 1.0) if passed_s > 0 else 1.0
