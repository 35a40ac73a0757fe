"""SimLoop: asyncio as it is, but time jumps and nothing of the outside gets in."""

from __future__ import annotations

import asyncio
import contextvars
import time

import pytest

from barnabas.testing.simulation.loop import (
    Deadlock,
    Livelock,
    NotSimulated,
    SimLoop,
    TimeIsUp,
    UnhandledError,
)
from barnabas.testing.simulation.process import Process
from barnabas.testing.simulation.trace import Trace


@pytest.fixture
def loop() -> SimLoop:
    return SimLoop(Trace(keep=None))


def test_an_hour_of_sleep_takes_no_time(loop: SimLoop) -> None:
    started = time.process_time()
    loop.run(asyncio.sleep(3600))
    assert loop.time() == 3600
    assert time.process_time() - started < 1


def test_ready_callbacks_run_first_in_first_out_and_timers_by_deadline_then_order(loop: SimLoop) -> None:
    log: list[str] = []

    async def main() -> None:
        loop.call_later(0.2, log.append, "late")
        loop.call_later(0.1, log.append, "first of two")
        loop.call_at(0.1, log.append, "second of two")
        loop.call_later(0.1, log.append, "cancelled").cancel()
        loop.call_soon(log.append, "soon")
        loop.call_later(0, log.append, "no delay")
        await asyncio.sleep(0.3)

    loop.run(main())
    assert log == ["soon", "no delay", "first of two", "second of two", "late"]


def test_asyncio_s_own_tools_work(loop: SimLoop) -> None:
    async def main() -> list[object]:
        seen: list[object] = []
        event, lock, queue = asyncio.Event(), asyncio.Lock(), asyncio.Queue[int](maxsize=1)

        async def waiter() -> str:
            await event.wait()
            async with lock:
                return "waited"

        async def producer() -> None:
            for number in range(3):
                await queue.put(number)

        task = asyncio.create_task(waiter())
        feeding = asyncio.create_task(producer())
        loop.call_later(5, event.set)
        seen.append([await queue.get() for _ in range(3)])
        seen.append(await task)
        await feeding
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(loop.create_future()), 3)
        seen.append(await asyncio.gather(asyncio.sleep(2, "a"), asyncio.sleep(1, "b")))
        seen.append(loop.time())
        seen.append(asyncio.get_running_loop() is loop)
        return seen

    assert loop.run(main()) == [[0, 1, 2], "waited", ["a", "b"], 17.0, True]


def test_context_variables_travel(loop: SimLoop) -> None:
    variable = contextvars.ContextVar("variable", default="outside")

    async def child() -> str:
        await asyncio.sleep(1)
        return variable.get()

    async def main() -> tuple[str, str]:
        variable.set("inside")
        inherited = asyncio.create_task(child())
        own = loop.create_task(child(), context=contextvars.Context())
        return await inherited, await own

    assert loop.run(main()) == ("inside", "outside")


@pytest.mark.parametrize(
    "call",
    [
        lambda loop: loop.call_soon_threadsafe(print),
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.add_reader(0, print),
        lambda loop: loop.add_signal_handler(2, print),
        lambda loop: loop.create_server(asyncio.Protocol, "localhost", 0),
        lambda loop: loop.create_connection(asyncio.Protocol, "localhost", 1),
        lambda loop: loop.getaddrinfo("localhost", 1),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
    ],
)
def test_the_outside_does_not_exist(loop: SimLoop, call: object) -> None:
    assert callable(call)
    with pytest.raises(NotSimulated):
        call(loop)


def test_a_deadlock_is_found_and_names_who_waits(loop: SimLoop) -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="the stuck one")

    with pytest.raises(Deadlock, match="the stuck one"):
        loop.run(main())
    loop.close()


def test_a_livelock_is_found(loop: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.testing.simulation.loop.CALLBACKS_PER_INSTANT_MAX", 1_000)

    def again() -> None:
        loop.call_soon(again)

    async def main() -> None:
        again()
        await asyncio.Event().wait()

    with pytest.raises(Livelock, match="time stands still"):
        loop.run(main())
    loop.close()


def test_virtual_time_can_be_limited(loop: SimLoop) -> None:
    with pytest.raises(TimeIsUp):
        loop.run(asyncio.sleep(10), time_limit_s=9)
    assert loop.time() == 9
    loop.close()


def test_an_exception_nobody_handles_ends_the_run(loop: SimLoop) -> None:
    async def main() -> None:
        loop.call_later(1, lambda: 1 / 0)
        await asyncio.sleep(100)

    with pytest.raises(UnhandledError, match="division") as raised:
        loop.run(main())
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert loop.time() == 1
    loop.close()


def test_heaps_of_cancelled_timers_are_swept(loop: SimLoop) -> None:
    async def main() -> int:
        for _ in range(10_000):
            async with asyncio.timeout(30):
                await asyncio.sleep(0)
        return len(loop._timers)

    assert loop.run(main()) < 1_000


def test_a_dead_process_s_timers_never_fire_and_its_tasks_are_cancelled_in_order(loop: SimLoop) -> None:
    log: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(10)
            log.append(f"{name} finished")
        except asyncio.CancelledError:
            log.append(f"{name} cancelled")
            try:
                await asyncio.Event().wait()  # closing takes waits of its own, which nobody will end
            finally:
                log.append(f"{name} cleaned up")
            raise OSError("its ports are cut") from None

    def begin() -> None:
        for number in range(3):
            loop.create_task(work(f"task {number}"))
        loop.call_later(2, log.append, "a dead timer")
        loop.call_later(0.5, log.append, "a living timer")

    async def main() -> None:
        process = Process("victim#1")
        process.on_death(lambda: log.append("cut"))
        process.context.run(begin)
        await asyncio.sleep(1)
        process.die()
        process.die()
        await asyncio.sleep(20)

    loop.run(main())
    assert log == [
        "a living timer",
        "cut",
        *[f"task {n} cancelled" for n in range(3)],
        *[f"task {n} cleaned up" for n in range(3)],
    ]


def test_the_trace_tells_runs_apart_and_equal_runs_not() -> None:
    async def main(pause: float) -> None:
        await asyncio.sleep(1)
        await asyncio.sleep(pause)

    digests = []
    for pause in (1.0, 1.0, 1.1):
        loop = SimLoop()
        loop.run(main(pause))
        digests.append(loop.trace.digest)
    assert digests[0] == digests[1] != digests[2]
