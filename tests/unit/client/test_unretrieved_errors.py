"""Which failures of records count as taken: what asyncio notes in its futures, and what follows from it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from barnabas.client import KafkaError, ProducerFenced, RequestTimedOut, SendFailed
from barnabas.client.producer.delivery import ERRORS_MAX, FUTURES_MAX, UnretrievedErrors

ERROR = RequestTimedOut("no answer")


def futures(count: int) -> list[asyncio.Future[Any]]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


def fail(unclaimed: UnretrievedErrors, *failing: asyncio.Future[Any], error: KafkaError = ERROR) -> None:
    unclaimed.fail(failing, error)


async def test_a_failure_that_nobody_takes_is_raised_once() -> None:
    unclaimed, failing = UnretrievedErrors(), futures(2)
    fail(unclaimed, *failing)
    failed = unclaimed.take()
    assert failed is not None
    assert (failed.record_count, failed.errors) == (2, (ERROR,))
    assert str(failed) == "2 records were not acknowledged: no answer"
    assert unclaimed.take() is None
    with pytest.raises(RequestTimedOut):  # the future still has it
        await failing[0]


@pytest.mark.parametrize("how", ["awaited", "result", "exception"])
async def test_a_failure_that_was_retrieved_is_taken(how: str) -> None:
    unclaimed, (failing,) = UnretrievedErrors(), futures(1)
    fail(unclaimed, failing)
    if how == "exception":
        assert failing.exception() is ERROR
    else:
        with pytest.raises(RequestTimedOut):
            await failing if how == "awaited" else failing.result()
    assert unclaimed.take() is None


@pytest.mark.parametrize("how", ["await", "gather", "wait", "wait_for", "shield", "callback"])
async def test_a_failure_that_somebody_waits_for_is_taken_even_if_they_have_not_run_yet(how: str) -> None:
    unclaimed, (failing,) = UnretrievedErrors(), futures(1)
    told: list[Any] = []

    async def waits() -> None:
        try:
            if how == "wait":
                done, _ = await asyncio.wait([failing])
                told.append(done.pop().exception())
            elif how == "gather":
                await asyncio.gather(failing)
            elif how == "wait_for":
                await asyncio.wait_for(failing, 60)
            elif how == "shield":
                await asyncio.shield(failing)
            else:
                await failing
        except KafkaError as error:
            told.append(error)

    if how == "callback":
        failing.add_done_callback(lambda done: told.append(done.exception()))
        waiting = asyncio.ensure_future(asyncio.sleep(0))
    else:
        waiting = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    fail(unclaimed, failing)
    assert unclaimed.take() is None
    await waiting
    assert told == [ERROR]


async def test_a_cancelled_future_takes_nothing() -> None:
    unclaimed, (cancelled, given_up) = UnretrievedErrors(), futures(2)
    cancelled.cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(given_up, 0)
    fail(unclaimed, cancelled, given_up)
    failed = unclaimed.take()
    assert failed is not None
    assert failed.record_count == 2


async def test_a_waiter_that_has_given_up_takes_nothing() -> None:
    unclaimed, (failing,) = UnretrievedErrors(), futures(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(failing), 0)
    inner = asyncio.ensure_future(asyncio.wait([failing]))
    await asyncio.sleep(0)
    inner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await inner
    shielded = bool(failing._callbacks)  # shield's callback stays; it retrieves the exception of a failure itself
    fail(unclaimed, failing)
    assert (unclaimed.take() is None) == shielded


async def test_several_failures_are_one_error() -> None:
    unclaimed, failing = UnretrievedErrors(), futures(3)
    fail(unclaimed, *failing[:2])
    fail(unclaimed, failing[2], error=ProducerFenced("newer", topic="t", partition=1))
    failed = unclaimed.take()
    assert failed is not None
    assert str(failed) == "3 records were not acknowledged: no answer (and 1 other error: see `errors`)"
    assert [type(error) for error in failed.errors] == [RequestTimedOut, ProducerFenced]
    assert (failed.fatal, failed.retriable, failed.topic) == (True, False, None)


async def test_what_is_held_is_bounded_and_every_record_is_counted() -> None:
    unclaimed = UnretrievedErrors()
    half = FUTURES_MAX // 2
    for _ in range(3):
        fail(unclaimed, *futures(half))
    assert sum(len(held) for _, held in unclaimed._held) == FUTURES_MAX
    for _ in range(ERRORS_MAX):
        fail(unclaimed, *futures(1))
    failed = unclaimed.take()
    assert failed is not None
    assert failed.record_count == 3 * half + ERRORS_MAX
    assert len(failed.errors) == ERRORS_MAX
    assert unclaimed.take() is None


async def test_a_failure_that_was_never_raised_is_reported_by_asyncio() -> None:
    """A producer that is neither flushed nor closed loses nothing silently, either."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    unclaimed = UnretrievedErrors()
    fail(unclaimed, *futures(1))
    del unclaimed
    gc.collect()
    assert [context["message"] for context in reported] == ["Future exception was never retrieved"]


async def test_cleared_failures_are_gone() -> None:
    unclaimed = UnretrievedErrors()
    fail(unclaimed, *futures(1))
    unclaimed.clear()
    assert unclaimed.take() is None
    with pytest.raises(IndexError):
        SendFailed(0, [])
