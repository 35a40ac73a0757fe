"""Background starts of brokers (`start(wait=False)`, `restart(2, wait=False)`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from barnabas.runtime.scope import Scope
from barnabas.testing.backend import Backend
from barnabas.testing.errors import BrokerKilledError


class Starts:
    """At most one start for each broker. `ready` or the cluster's end raises its error, unless the broker was killed or restarted.

    `on_started` is awaited with the id of each broker that serves.
    """

    def __init__(self, backend: Backend, on_started: Callable[[int], Awaitable[None]]) -> None:
        self._backend = backend
        self._on_started = on_started
        self._scope = Scope("starts")
        self._tasks: dict[int, asyncio.Task[None]] = {}  # those that go on
        self._errors: dict[int, Exception] = {}  # of those that have failed
        self._changed = asyncio.Event()  # a start has ended

    async def begin(self, broker_ids: Iterable[int]) -> None:
        """Begins the starts of brokers that are down; returns when their state is "starting"."""
        for each in broker_ids:
            self._tasks[each] = self._scope.start(self._start(each), name=f"broker {each}")
        await asyncio.sleep(0)

    async def _start(self, broker_id: int) -> None:
        try:
            await self._backend.start_broker(broker_id)
            await self._on_started(broker_id)
        except BrokerKilledError:
            pass  # the test wanted it
        except Exception as error:  # the test gets it
            self._errors[broker_id] = error
        finally:
            self._tasks.pop(broker_id, None)
            self._changed.set()

    async def ready(self, broker_ids: Iterable[int]) -> None:
        """Waits until these brokers have started. Raises what one of the starts has raised."""
        waited = list(broker_ids)
        while True:
            self.raise_failed(waited)
            if not any(each in self._tasks for each in waited):
                return
            self._changed.clear()
            await self._changed.wait()

    def raise_failed(self, broker_ids: Iterable[int]) -> None:
        """Raises the error of a start of these brokers that has failed."""
        for each in broker_ids:
            error = self._errors.pop(each, None)
            if error is not None:
                raise error

    async def cancel(self, *broker_ids: int) -> None:
        """Ends the starts of these brokers. One that does not serve yet is down when this returns."""
        tasks = [self._tasks.pop(each) for each in broker_ids if each in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in broker_ids:
            self._errors.pop(each, None)
        self._changed.set()

    async def end(self) -> list[str]:
        """Ends all starts. Returns the errors that nothing has raised yet."""
        failed = [f"the start of broker {each} failed: {error}" for each, error in self._errors.items()]
        await self.cancel(*self._tasks)
        return failed
