"""Chaos: faults drawn from a world's seed, one after another, while the exactly-once copy runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from barnabas.testing.simulation.world import Machine, World
from tests.support.simulation.workload import Broker, Program


class Chaos:
    """Causes faults and ends them.

    Args:
        broker: runs on machine "broker".
        copier: runs on machine "worker", and as its double on "worker-2".
        power: whether power may fail; records survive this only if acknowledgements wait for the disk.
    """

    def __init__(self, world: World, broker: Broker, copier: Program, *, power: bool) -> None:
        self.world = world
        self.broker = broker
        self.copier = copier
        self.power = power
        self.node: Machine = world.machine("broker")
        self.worker: Machine = world.machine("worker")
        self.double: Machine = world.machine("worker-2")
        self.faults: list[Callable[[], Awaitable[None]]] = [
            self.kill_broker,
            self.lose_power if power else self.kill_broker,
            self.stop_broker,
            self.kill_worker,
            self.cut_link,
            self.reset_link,
            self.crash_at_disk_change,
            self.crash_at_delivery,
            self.split_brain,
            self.break_disk,
            self.set_clock,
        ]

    async def run(self, count: int) -> None:
        """Causes `count` faults, in bursts and with pauses, and ends all of them."""
        rng = self.world.rng
        for _ in range(count):
            await self._pause(4.0 if rng.randrange(3) else 0.3)
            await self.faults[rng.randrange(len(self.faults))]()
        self.double.kill()

    async def kill_broker(self) -> None:
        """SIGKILL: the page cache survives."""
        self.node.kill()
        await self._restart_broker()

    async def lose_power(self) -> None:
        """The machine loses power: unsynced bytes are lost or torn."""
        self.node.lose_power()
        await self._restart_broker()

    async def crash_at_disk_change(self) -> None:
        """The broker crashes just before a change of its disk."""
        countdown = self.world.rng.randrange(40)

        def crash(what: str) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown < 0:
                self.node.disk.before_change = self._no_crash
                self._crash_broker()

        self.node.disk.before_change = crash
        await self._crashed()
        self.node.disk.before_change = self._no_crash

    async def crash_at_delivery(self) -> None:
        """The broker crashes when a client has received bytes from it: what they acknowledge must hold."""
        countdown = self.world.rng.randrange(40)

        def crash(source: str, target: str) -> None:
            nonlocal countdown
            countdown -= source == "broker"
            if countdown < 0:
                self.world.network.after_delivery = self._no_crash
                self._crash_broker()

        self.world.network.after_delivery = crash
        await self._crashed()
        self.world.network.after_delivery = self._no_crash

    def _crash_broker(self) -> None:
        if self.power and self.world.rng.randrange(2):
            self.node.lose_power()
        else:
            self.node.kill()

    def _no_crash(self, *event: str) -> None:
        """Nothing happens."""

    async def _crashed(self) -> None:
        """Waits for the crash at the event; crashes the broker if the event does not come."""
        try:
            async with asyncio.timeout(5):
                await self.node.join()
        except TimeoutError:
            self._crash_broker()
        await self._restart_broker()

    async def stop_broker(self) -> None:
        """SIGTERM."""
        self.broker.stop()
        await self.node.join()
        await self._restart_broker()

    async def kill_worker(self) -> None:
        """The worker is killed, often within a transaction, and started again."""
        self.worker.kill()
        await self._pause(3.0 * self.world.rng.randrange(2))
        self.worker.start(self.copier)

    async def cut_link(self) -> None:
        """Nothing passes between the broker and a client, in one direction or both, for up to 40 seconds."""
        both_ways = bool(self.world.rng.randrange(2))
        self.world.network.cut(self._client(), "broker", both_ways=both_ways)
        await self._pause(3.0 if self.world.rng.randrange(4) else 40.0)
        self.world.network.heal()

    async def reset_link(self) -> None:
        """A client's connections are reset."""
        self.world.network.reset_links(self._client(), "broker")

    async def split_brain(self) -> None:
        """The worker is cut off and replaced by a double with its transactional id; then it returns as a zombie."""
        self.world.network.cut("worker", "broker")
        if self.double.process is None:
            self.double.start(self.copier)
        await self._pause(20.0)
        self.world.network.heal()
        if self.world.rng.randrange(2):
            await self._pause(3.0)
            self.double.kill()

    async def break_disk(self) -> None:
        """Calls of the broker's disk fail, perhaps after half of a write; then the broker is started again."""
        rng = self.world.rng
        call = ("pwrite", "sync", "create", "replace", "rename", "remove")[rng.randrange(6)]
        self.broker.disk_may_fail = True
        times = None if rng.randrange(2) else 1
        self.node.disk.fail(
            call, nth=rng.randrange(30) + 1, times=times, done="half" if bool(rng.randrange(2)) else "nothing"
        )
        await self._pause(5.0)
        self.node.kill()  # where it has not given up by itself
        self.node.disk.heal()
        self.broker.disk_may_fail = False
        await self._restart_broker()

    async def set_clock(self) -> None:
        """The wall clock of a machine jumps by up to half an hour; the broker refuses timestamps an hour ahead."""
        machine = (self.node, self.worker, self.double)[self.world.rng.randrange(3)]
        machine.clock.skew_ms = self.world.rng.randrange(3_600_000) - 1_800_000

    async def _restart_broker(self) -> None:
        await self._pause(5.0 * self.world.rng.randrange(2))
        self.node.start(self.broker)

    async def _pause(self, up_to_s: float) -> None:
        await asyncio.sleep(self.world.rng.random() * up_to_s)

    def _client(self) -> str:
        return ("worker", "feeder", "observer")[self.world.rng.randrange(3)]
