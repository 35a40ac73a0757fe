"""Scope: creation order of cancellation, crashes reported once, nothing outlives a stop."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.errors import LocalProtocolError
from barnabas.runtime.scope import Scope
from tests.support.waiting import turns, until


async def _log_cancellation(log: list[int], number: int) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        log.append(number)
        raise


async def _fail(message: str) -> None:
    await asyncio.sleep(0)
    raise ValueError(message)


async def test_stop_cancels_in_creation_order_inner_scopes_first() -> None:
    log: list[int] = []
    scope = Scope("node")
    inner = scope.child("connection")
    for number in range(20):
        (inner if number % 2 else scope).start(_log_cancellation(log, number))
    await asyncio.sleep(0)
    assert len(scope) == 20
    await scope.stop()
    assert log == [*range(1, 20, 2), *range(0, 20, 2)]
    assert len(scope) == 0


async def test_leaving_the_block_cancels_what_still_runs() -> None:
    log: list[int] = []
    async with Scope("block") as scope:
        scope.start(_log_cancellation(log, 1))
        await asyncio.sleep(0)
    assert log == [1]


async def test_a_crash_interrupts_the_block_and_is_raised_from_it() -> None:
    async def body() -> None:
        async with Scope("block") as scope:
            scope.start(_fail("broken"))
            await asyncio.Event().wait()

    with pytest.raises(ValueError, match="broken"):
        await body()
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_the_body_s_own_error_wins_over_cancellation() -> None:
    async def body() -> None:
        async with Scope("block") as scope:
            scope.start(asyncio.Event().wait())
            raise KeyError("body")

    with pytest.raises(KeyError):
        await body()


async def test_a_crash_is_reported_once_and_stops_the_rest() -> None:
    crashes: list[BaseException] = []
    log: list[int] = []
    scope = Scope("node", on_crash=crashes.append)
    scope.start(_log_cancellation(log, 1))
    scope.start(_fail("first"))
    scope.start(_fail("second"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await scope.stop()
    assert [str(crash) for crash in crashes] == ["first"]
    assert log == [1]
    assert scope.crash is crashes[0]


async def test_a_crash_without_an_heir_reaches_the_loop_s_handler() -> None:
    heard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    scope = Scope("node")
    scope.start(_fail("lost"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await scope.stop()
    assert [str(context["exception"]) for context in heard] == ["lost"]


async def test_a_child_s_crash_is_the_parent_s_unless_the_child_reports_it() -> None:
    outer: list[BaseException] = []
    own: list[BaseException] = []
    scope = Scope("node", on_crash=outer.append)
    quiet = scope.child("connection", on_crash=own.append)
    quiet.start(_fail("own"))
    await until(lambda: own)
    assert (len(own), len(outer), scope.stopping) == (1, 0, False)
    scope.child("raft").start(_fail("shared"))
    await until(lambda: outer)
    assert ([str(crash) for crash in outer], scope.stopping) == (["shared"], True)
    await scope.stop()


async def test_join_waits_for_the_end_and_raises_the_crash() -> None:
    scope = Scope("copy")
    done: list[int] = []

    async def work() -> None:
        await turns()
        done.append(1)

    scope.start(work())
    await scope.join()
    assert done == [1]
    scope.start(_fail("late"))
    with pytest.raises(ValueError, match="late"):
        await scope.join()


async def test_a_task_may_stop_the_scope_above_its_own() -> None:
    log: list[int] = []
    scope = Scope("node")

    async def stopper() -> None:
        await scope.stop()
        log.append(99)

    scope.start(_log_cancellation(log, 1))
    await asyncio.sleep(0)
    task = scope.child("connection").start(stopper())
    await asyncio.wait_for(task, 60)
    assert log == [1, 99]


async def test_nothing_starts_in_a_stopping_scope() -> None:
    scope = Scope("node")
    await scope.stop()
    with pytest.raises(LocalProtocolError, match="stopping"):
        scope.start(asyncio.sleep(0))
    with pytest.raises(LocalProtocolError, match="stopping"):
        scope.child("connection")


async def test_a_stopped_child_is_forgotten_by_its_parent() -> None:
    scope = Scope("node")
    child = scope.child("connection")
    child.start(asyncio.Event().wait())
    await child.stop()
    assert scope._children == {}
