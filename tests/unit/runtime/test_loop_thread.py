"""The thread with an event loop: calls with deadlines, a pause that stops everything, an end that leaves nothing."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from barnabas.runtime.loop_thread import LoopThread


async def _later(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_a_result_and_an_exception_reach_the_caller() -> None:
    thread = LoopThread("t")
    assert thread.run(_later(3), 10, "it") == 3

    async def fails() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        thread.run(fails(), 10, "it")
    thread.end()


def test_a_call_that_takes_too_long_is_cancelled() -> None:
    thread = LoopThread("t")
    cancelled = threading.Event()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError, match=r"the work did not end within 0\.01 s"):
        thread.run(long(), 0.01, "the work")
    assert cancelled.wait(60)
    thread.end()


def test_a_callback_of_the_thread_cannot_wait_for_it() -> None:
    thread = LoopThread("t")

    async def waits_for_itself() -> int:
        return thread.run(_later(1), 60, "it")

    with pytest.raises(RuntimeError, match="a callback of thread t cannot wait for that thread"):
        thread.run(waits_for_itself(), 60, "it")
    thread.end()


def test_a_pause_stops_everything_until_it_ends() -> None:
    thread = LoopThread("t")
    ran = threading.Event()
    thread.pause()
    assert thread.paused
    thread.call(ran.set)
    assert not ran.wait(0.05)
    thread.resume()
    assert ran.wait(60)
    assert not thread.paused
    thread.end()


def test_an_end_during_a_pause_runs_nothing_before_the_last_call() -> None:
    thread = LoopThread("t")
    order: list[str] = []
    thread.pause()
    thread.call(lambda: order.append("later"))
    thread.end(lambda: order.append("last"))
    assert order[0] == "last"
    assert not thread.alive


def test_an_end_right_after_a_pause_cancels_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    cancelled: list[int] = []

    async def forever(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(number)

    for number in range(10):
        thread = LoopThread("t")
        thread.submit(forever(number))
        thread.pause()
        thread.resume()
        thread.end()
    assert not failed
    assert cancelled == list(range(10))


def test_an_end_cancels_every_task() -> None:
    thread = LoopThread("t")
    ended: list[str] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    for name in "abc":
        thread.submit(forever(name))
    thread.run(_later(0), 60, "it")
    thread.end()
    assert sorted(ended) == ["a", "b", "c"]
    assert all(each.name != "t" for each in threading.enumerate())
    with pytest.raises(RuntimeError, match="thread t has ended"):
        thread.submit(_later(1))
    thread.end()  # a second time


def wait_for(event: threading.Event, began: threading.Event) -> None:
    began.set()
    event.wait(60)


def test_a_callback_that_does_not_return_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.runtime.loop_thread.END_S", 0.05)
    thread = LoopThread("t")
    began, release = threading.Event(), threading.Event()
    thread.call(partial(wait_for, release, began))
    assert began.wait(60)
    with pytest.raises(TimeoutError, match="thread t did not stop"):
        thread.pause()
    with pytest.raises(TimeoutError, match="thread t did not end"):
        thread.end()
    release.set()
