"""Base of the modes that start brokers on this machine. All ports stay reserved until `abandon`, also while a broker is down."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from barnabas.testing.backend import Backend, RunState, Shape
from barnabas.testing.errors import KitError
from barnabas.testing.ports import HOST, ReservedPorts


def killed_text(broker_id: int) -> str:
    """Why a broker did not do what it was asked to."""
    return f"a fault of its disk has killed broker {broker_id}, so it did not do this: restart it first"


class LocalBroker(Protocol):
    """What every mode knows about one of its brokers."""

    @property
    def state(self) -> RunState:
        """Whether it runs."""
        ...

    may_end: bool  # its end is no failure


B = TypeVar("B", bound=LocalBroker)


class LocalBackend(Backend, ABC, Generic[B]):
    """The part of `Backend` that is the same for threads and processes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._ports = ReservedPorts(shape.brokers, shape.port)
        self._inner_ports = ReservedPorts(shape.inner_ports)
        self.log_dirs = shape.log_dirs
        self._failures: list[str] = []
        self._brokers: dict[int, B] = {}
        ports = [*self._ports.numbers, *self._inner_ports.numbers]
        try:
            self._make_brokers({each: shape.settings(each, HOST, ports) for each in shape.broker_ids})
        except BaseException:
            self.abandon()
            raise

    @abstractmethod
    def _make_brokers(self, settings: dict[int, dict[str, str]]) -> None:
        """Fills `_brokers` with brokers that are down; `settings` has those of each broker, without log.dirs."""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._ports.numbers)

    @property
    def internal_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._inner_ports.numbers[-len(self._brokers) :])

    @property
    def broker_ids(self) -> list[int]:
        return list(self._brokers)

    def address(self, broker_id: int) -> tuple[str, int]:
        return HOST, self._ports.numbers[broker_id - 1]

    def state(self, broker_id: int) -> RunState:
        return self._brokers[broker_id].state

    def may_end(self, broker_id: int, allowed: bool = True) -> None:
        self._brokers[broker_id].may_end = allowed

    async def settle(self, broker_id: int) -> None:
        if self.state(broker_id) == "running":
            with contextlib.suppress(RuntimeError, KitError):  # it has ended before its answer
                await self.command(broker_id, "live_brokers", {})  # its answer comes after the events before it
        await asyncio.sleep(0)

    def failures(self) -> list[str]:
        found, self._failures = self._failures, []
        return found

    # -- start and stop

    async def start(self) -> None:
        try:
            await asyncio.gather(*(self.start_broker(each) for each in self._brokers))
        except BaseException:
            self.abandon()
            raise

    @abstractmethod
    def abandon(self) -> None:
        """As of `Backend`: ends the brokers, then calls `_release`."""

    def _release(self) -> None:
        self._ports.release()
        self._inner_ports.release()
