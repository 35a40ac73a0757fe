"""Timers: order of deadlines, cancellation, and the one loop timer behind them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from barnabas.broker.scheduling.timers import CALLS_PER_TURN, SWEEP_ABOVE, Timers
from barnabas.errors import InvariantViolated


class Loop:
    """Clock and loop in one: time moves only by `run_to`."""

    def __init__(self) -> None:
        self.ms = 0
        self.armed: dict[object, tuple[float, Callable[[], None]]] = {}
        self.armings = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        handle = Handle(self)
        self.armings += 1
        self.armed[handle] = (self.ms + delay_s * 1000, callback)
        return handle

    def run_to(self, ms: int) -> None:
        while due := [(at, handle) for handle, (at, _) in self.armed.items() if at <= ms]:
            at, handle = min(due, key=lambda pair: pair[0])
            self.ms = max(self.ms, round(at))
            self.armed.pop(handle)[1]()
        self.ms = ms


class Handle:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def cancel(self) -> None:
        self.loop.armed.pop(self, None)


def turn(loop: Loop) -> None:
    """Runs the loop's timer that is due, once."""
    (handle,) = loop.armed
    at, fire = loop.armed.pop(handle)
    assert at <= loop.ms
    fire()


def timers(broken: list[InvariantViolated] | None = None) -> tuple[Loop, Timers]:
    loop = Loop()
    return loop, Timers(loop, loop.call_later, (broken if broken is not None else []).append)


def test_callbacks_run_by_deadline_then_arrival() -> None:
    loop, all_timers = timers()
    seen: list[str] = []
    for name, delay in (("c", 30), ("a", 10), ("b", 20), ("a2", 10), ("now", -5)):
        all_timers.call_later(delay, partial(seen.append, name))
    loop.run_to(19)
    assert seen == ["now", "a", "a2"]
    loop.run_to(100)
    assert seen == ["now", "a", "a2", "b", "c"]
    assert len(all_timers) == 0
    assert not loop.armed


def test_one_loop_timer_at_a_time_and_a_nearer_deadline_rearms_it() -> None:
    loop, all_timers = timers()
    seen: list[int] = []
    all_timers.call_later(100, lambda: seen.append(100))
    for delay in (200, 300, 150):
        all_timers.call_later(delay, partial(seen.append, delay))
    assert (len(loop.armed), loop.armings) == (1, 1)
    all_timers.call_later(5, lambda: seen.append(5))
    assert (len(loop.armed), loop.armings) == (1, 2)
    loop.run_to(1000)
    assert seen == [5, 100, 150, 200, 300]


def test_a_cancelled_one_is_not_called_and_cancel_is_idempotent() -> None:
    loop, all_timers = timers()
    seen: list[int] = []
    kept = all_timers.call_later(10, lambda: seen.append(1))
    gone = all_timers.call_later(10, lambda: seen.append(2))
    gone.cancel()
    gone.cancel()
    assert len(all_timers) == 1
    loop.run_to(20)
    kept.cancel()
    assert seen == [1]
    assert len(all_timers) == 0


def test_a_callback_may_arm_and_cancel_others() -> None:
    loop, all_timers = timers()
    seen: list[str] = []
    victim = all_timers.call_later(10, lambda: seen.append("victim"))

    def first() -> None:
        seen.append("first")
        victim.cancel()
        all_timers.call_later(0, lambda: seen.append("at once"))
        all_timers.call_later(500, lambda: seen.append("late"))

    all_timers.call_later(5, first)
    all_timers.call_later(20, lambda: seen.append("between"))
    loop.run_to(30)
    assert seen == ["first", "at once", "between"]
    loop.run_to(600)
    assert seen[-1] == "late"


def test_a_chain_of_callbacks_without_delay_takes_a_turn_for_each() -> None:
    loop, all_timers = timers()
    seen: list[str] = []

    def again() -> None:
        seen.append("chain")
        if len(seen) < 10:
            all_timers.call_later(0, again)

    all_timers.call_later(5, again)
    all_timers.call_later(5, lambda: seen.append("other"))
    loop.ms = 5
    turn(loop)
    assert seen == ["chain", "other"]
    turn(loop)
    assert seen == ["chain", "other", "chain"]
    loop.run_to(5)
    assert len(seen) == 10


def test_many_deadlines_at_once_take_several_turns() -> None:
    loop, all_timers = timers()
    seen: list[int] = []
    count = 3 * CALLS_PER_TURN + 1
    for number in range(count):
        all_timers.call_later(5, partial(seen.append, number))
    loop.ms = 7
    for done in (CALLS_PER_TURN, 2 * CALLS_PER_TURN, 3 * CALLS_PER_TURN, count):
        turn(loop)
        assert seen == list(range(done))
    assert not loop.armed


def test_what_is_cancelled_does_not_pile_up() -> None:
    _, all_timers = timers()
    for _ in range(10 * SWEEP_ABOVE):
        all_timers.call_later(60_000, lambda: None).cancel()
    assert len(all_timers._heap) <= 2 * SWEEP_ABOVE + 2
    assert len(all_timers) == 0


def test_a_failing_callback_stops_nobody_and_a_broken_invariant_is_reported() -> None:
    broken: list[InvariantViolated] = []
    loop, all_timers = timers(broken)
    seen: list[int] = []

    def fail(error: Exception) -> Callable[[], None]:
        def callback() -> None:
            raise error

        return callback

    all_timers.call_later(1, fail(ValueError("a bug")))
    all_timers.call_later(1, fail(InvariantViolated("a contradiction")))
    all_timers.call_later(1, lambda: seen.append(1))
    loop.run_to(5)
    assert seen == [1]
    assert [str(error) for error in broken] == ["a contradiction"]


def test_against_a_plain_list() -> None:
    rng = random.Random(7)
    loop, all_timers = timers()
    expected: list[tuple[int, int]] = []
    seen: list[tuple[int, int]] = []
    handles = []
    for number in range(2_000):
        due = loop.ms + rng.randrange(0, 300)
        key = (due, number)
        handles.append((key, all_timers.call_later(due - loop.ms, partial(seen.append, key))))
        expected.append(key)
        if rng.random() < 0.5:
            key, handle = handles.pop(rng.randrange(len(handles)))
            handle.cancel()
            if key not in seen:
                expected.remove(key)
        if rng.random() < 0.1:
            loop.run_to(loop.ms + rng.randrange(0, 50))
    loop.run_to(10_000)
    assert seen == sorted(expected)


def test_stop_forgets_everything() -> None:
    loop, all_timers = timers()
    seen: list[int] = []
    all_timers.call_later(1, lambda: seen.append(1))
    all_timers.stop()
    loop.run_to(100)
    assert not seen
    assert not loop.armed
