"""An expected broker exit, caused by the test itself."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from barnabas.testing.errors import KitError, KitTimeout, NearestNames, checked_seconds
from barnabas.testing.kit_thread import Aio, blocking, coroutine
from barnabas.testing.world.surroundings import Surroundings

WAIT_S: Final = 10.0


class ExpectedEndAio(Aio["ExpectedEnd"]):
    """The coroutine of an expected end."""

    @coroutine
    async def wait(self, timeout: float = WAIT_S) -> None:
        """Returns when the broker is down. Raises KitTimeout after `timeout` seconds."""
        timeout = checked_seconds("wait: timeout", timeout, zero=True)
        world, broker_id = self._of._world, self._of._broker
        try:
            async with asyncio.timeout(timeout):
                await world.ended(broker_id)
        except TimeoutError:
            state = world.host.backend("expect_end").state(broker_id)
            raise KitTimeout(f"broker {broker_id} has not ended within {timeout:g} s; it is {state}") from None


class ExpectedEnd(NearestNames):
    """`with kafka.expect_end(2): ...` waits at its end for the broker's exit, unless the block has raised; also as `async with`."""

    def __init__(self, world: Surroundings, broker_id: int) -> None:
        backend = world.host.backend("expect_end")
        if backend.state(broker_id) == "down":
            raise KitError(f"broker {broker_id} is down already, so it cannot end: restart it first")
        self._world = world
        self._broker = broker_id
        world.allow_end(broker_id)

    @property
    def aio(self) -> ExpectedEndAio:
        """The method that waits, as a coroutine."""
        return ExpectedEndAio(self)

    _called = "end"
    wait = blocking(ExpectedEndAio.wait, waits_for_application=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.aio.wait()

    def __repr__(self) -> str:
        return f"<the end of broker {self._broker}>"
