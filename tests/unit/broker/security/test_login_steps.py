"""LoginSteps: one step at a time, and no step of a connection that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.security.server_login import LoginSteps
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.randomness import SystemRng
from tests.support.waiting import until


async def test_a_step_whose_connection_has_ended_leaves_the_queue() -> None:
    reactor = Reactor(SystemClock(), SystemRng(), name="node", on_fatal=lambda error: None)
    go_on = asyncio.Event()
    done: list[str] = []

    async def offload(work: Callable[[], None]) -> None:
        await go_on.wait()
        work()

    def end(name: str, failure: Exception | None) -> None:
        done.append(f"{name} {failure}")

    def fail() -> None:
        raise ValueError("wrong")

    steps = LoginSteps(reactor, offload)
    steps.run(lambda: done.append("work"), partial(end, "first"))
    forget = [steps.run(lambda: done.append("never"), partial(end, "never")) for _ in range(1_000)]
    steps.run(fail, partial(end, "last"))
    assert len(steps) == 1_001
    for each in forget:
        each()
    assert len(steps) == 1, "a slow thread must not keep the tokens of clients that have left"
    go_on.set()
    await until(lambda: len(done) == 3)
    assert done == ["work", "first None", "last wrong"]
    await reactor.stop()
