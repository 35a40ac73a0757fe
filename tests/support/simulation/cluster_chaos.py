"""Chaos among several brokers: faults drawn from a world's seed that may overlap, while the exactly-once copy runs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from enum import Enum

from barnabas.broker.image.image import MetadataImage
from barnabas.protocol.schema import Message
from barnabas.storage.disk import MemoryDisk
from barnabas.testing.simulation.world import Machine, World
from tests.support.requests import request_of
from tests.support.simulation.cluster import Watch, is_up
from tests.support.simulation.workload import PARTITIONS, Broker, Program

DOWN_SECONDS_MAX = 15.0  # longer than a session


class Power(Enum):
    """Whose power fails."""

    ON = "nobody's: the page cache is safe"
    ONE_BY_ONE = (
        "one machine's, the next one's when all replicas are in sync again: what min.insync.replicas=2 of 3 bears"
    )
    OFF = "anybody's at any time: acknowledgements must wait for the disk"


class ClusterChaos:
    """Causes faults and ends them. The seed decides how often each kind of fault comes, or that it never comes.

    Args:
        watch: looks at every event; faults at events go through it.
        workers: the copiers by their machines; the first one is also run on "double".
    """

    def __init__(
        self,
        world: World,
        brokers: dict[str, Broker],
        watch: Watch,
        workers: dict[str, Program],
        *,
        power: Power,
    ) -> None:
        self.world = world
        self.brokers = brokers
        self.watch = watch
        self.workers = workers
        self.power = power
        self.double: Machine = world.machine("double")
        self.version = 2
        self.count: dict[str, int] = {}
        self.faults = [fault for fault in self.kinds() for _ in range((0, 1, 1, 3)[self._draw(4)])] or self.kinds()

    def kinds(self) -> list[Callable[[], Awaitable[None]]]:
        """Every kind of fault."""
        return [
            self.kill_broker,
            self.kill_broker if self.power is Power.ON else self.lose_power,
            self.stop_broker,
            self.all_at_once,
            self.cut_brokers,
            self.zombie,
            self.freeze,
            self.isolate,
            self.reset_brokers,
            self.crash_at_disk_change,
            self.crash_at_delivery,
            self.kill_worker,
            self.cut_client,
            self.split_brain,
            self.break_disk,
            self.slow_disk,
            self.slow_link,
            self.set_clock,
            self.change_version,
            self.elect_preferred,
            self.move_partition,
            *([self.replace_disk] if self.power is Power.ONE_BY_ONE else []),
        ]

    async def run(self, count: int) -> None:
        """Causes `count` faults, and ends all of them."""
        for _ in range(count):
            await self._pause(4.0 if self._draw(3) else 0.3)
            fault = self.faults[self._draw(len(self.faults))]
            self.count[fault.__name__] = self.count.get(fault.__name__, 0) + 1
            await fault()
        self.double.kill()
        self.world.network.heal()
        self.world.network.unshape()
        for name in self.brokers:
            self._start(name)
        for name, program in self.workers.items():
            if self.world.machine(name).process is None:
                self.world.machine(name).start(program)

    # -- faults

    async def kill_broker(self) -> None:
        """SIGKILL: the page cache survives."""
        name = self._broker()
        self.world.machine(name).kill()
        self._restart_later(name)

    async def lose_power(self) -> None:
        """A machine loses power: unsynced bytes are lost or torn."""
        careful = self.power is Power.ONE_BY_ONE
        if careful and not await self._all_in_sync():
            return
        name = self._broker()
        self.world.machine(name).lose_power()
        self._restart_later(name)
        if careful:
            # A killed broker cannot be told from one that lost power: all of them within a session would be too many.
            await asyncio.sleep(DOWN_SECONDS_MAX)
            await self._all_in_sync()

    async def replace_disk(self) -> None:
        """A machine gets a new, empty disk while all other replicas have the data."""
        if not await self._all_in_sync():
            return
        name = self._broker()
        machine = self.world.machine(name)
        machine.kill()
        machine.disk.real = MemoryDisk(f"/{name}")
        self.watch.forget(name)
        self._restart_later(name)
        await asyncio.sleep(DOWN_SECONDS_MAX)
        await self._all_in_sync()

    async def all_at_once(self) -> None:
        """Every broker is killed at the same time."""
        power = self.power is Power.OFF and bool(self._draw(2))
        for name in self.brokers:
            machine = self.world.machine(name)
            if power:
                machine.lose_power()
            else:
                machine.kill()
        for name in self.brokers:
            self._restart_later(name)

    async def stop_broker(self) -> None:
        """SIGTERM, and SIGKILL after a while if the broker has not ended."""
        name = self._broker()
        machine = self.world.machine(name)
        if machine.process is None:
            return
        self.brokers[name].stop()
        try:
            async with asyncio.timeout(20):
                await machine.join()
        except TimeoutError:
            machine.kill()
        self._restart_later(name)

    async def crash_at_disk_change(self) -> None:
        """A broker crashes just before a change of its disk."""
        countdown = self._draw(60)

        def crash(name: str, what: str) -> None:
            nonlocal countdown
            countdown -= name == victim
            if countdown < 0 and name == victim:
                self.watch.on_disk_change = _nothing
                self._crash(name)

        victim = self._broker()
        self.watch.on_disk_change = crash
        await self._pause(6.0)
        self.watch.on_disk_change = _nothing
        self._restart_later(victim)

    async def crash_at_delivery(self) -> None:
        """A broker crashes when a peer has received bytes from it: what they acknowledge must hold."""
        countdown = self._draw(60)

        def crash(source: str, target: str) -> None:
            nonlocal countdown
            countdown -= source == victim
            if countdown < 0:
                self.watch.on_delivery = _nothing
                self._crash(victim)

        victim = self._broker()
        self.watch.on_delivery = crash
        await self._pause(6.0)
        self.watch.on_delivery = _nothing
        self._restart_later(victim)

    async def cut_brokers(self) -> None:
        """Nothing passes between two brokers, in one direction or both."""
        one = self._broker()
        others = [name for name in self.brokers if name != one]
        other = others[self._draw(len(others))]
        self.world.network.cut(one, other, both_ways=bool(self._draw(2)))
        await self._pause(20.0 if self._draw(2) else 2.0)
        if self._draw(4):
            self.world.network.heal(one, other)

    async def zombie(self) -> None:
        """A broker is cut off from the others, while clients still reach it."""
        name = self._broker()
        for other in self.brokers:
            if other != name:
                self.world.network.cut(name, other)
        await self._pause(20.0)
        self.world.network.heal(name)

    async def freeze(self) -> None:
        """SIGSTOP, for longer than a session perhaps, then SIGCONT."""
        machine = self.world.machine(self._broker())
        machine.pause()
        await self._pause(20.0)
        machine.resume()

    async def isolate(self) -> None:
        """A broker is cut off from everybody."""
        name = self._broker()
        self.world.network.isolate(name)
        await self._pause(20.0)
        self.world.network.heal(name)

    async def reset_brokers(self) -> None:
        """Connections between two brokers are reset."""
        one, other = self._broker(), self._broker()
        if one != other:
            self.world.network.reset_links(one, other)

    async def kill_worker(self) -> None:
        """A worker is killed, often within a transaction, and started again."""
        name = list(self.workers)[self._draw(len(self.workers))]
        self.world.machine(name).kill()
        await self._pause(3.0 * self._draw(2))
        self.world.machine(name).start(self.workers[name])

    async def cut_client(self) -> None:
        """Nothing passes between a broker and a client, in one direction or both."""
        clients = [*self.workers, "feeder", "observer", "churner"]
        client = clients[self._draw(len(clients))]
        name = self._broker()
        self.world.network.cut(client, name, both_ways=bool(self._draw(2)))
        await self._pause(3.0 if self._draw(4) else 40.0)
        self.world.network.heal(client, name)

    async def split_brain(self) -> None:
        """A worker is cut off and replaced by a double with the same transactional id; then it comes back, a zombie."""
        worker, program = next(iter(self.workers.items()))
        for name in self.brokers:
            self.world.network.cut(worker, name)
        if self.double.process is None:
            self.double.start(program)
        await self._pause(20.0)
        self.world.network.heal(worker)
        await self._pause(3.0)
        self.double.kill()

    async def break_disk(self) -> None:
        """Calls of a broker's disk fail, soon or later, perhaps after half of a write; then it is started again."""
        name = self._broker()
        machine, broker = self.world.machine(name), self.brokers[name]
        call = ("pwrite", "sync", "create", "replace", "rename", "remove")[self._draw(6)]
        broker.disk_may_fail = True
        machine.disk.fail(
            call,
            nth=self._draw(30) + 1,
            times=None if self._draw(2) else 1,
            number=errno.EIO if self._draw(2) else errno.ENOSPC,
            done="half" if bool(self._draw(2)) else "nothing",
        )
        await self._pause(8.0)
        machine.kill()  # where it has not given up by itself
        machine.disk.heal()
        broker.disk_may_fail = False
        self._restart_later(name)

    async def slow_disk(self) -> None:
        """Each sync of a broker's disk takes seconds for a while."""
        machine = self.world.machine(self._broker())
        machine.disk.slow(self.world.rng.random() * 5)
        await self._pause(20.0)
        machine.disk.slow(0)

    async def slow_link(self) -> None:
        """What a broker sends and gets takes up to a second for a while: connections overtake each other."""
        name = self._broker()
        for other in self.world.network.hosts:
            half_s = self._draw(500_000) / 1_000_000
            for link in ((name, other), (other, name)):
                self.world.network.shape(*link, latency_s=0.001 + half_s, jitter_s=half_s)
        await self._pause(20.0)
        self.world.network.unshape()

    async def set_clock(self) -> None:
        """The wall clock of a machine jumps by up to half an hour; brokers refuse timestamps an hour ahead."""
        machines = [*self.brokers, *self.workers]
        self.world.machine(machines[self._draw(len(machines))]).clock.skew_ms = self._draw(3_600_000) - 1_800_000

    async def change_version(self) -> None:
        """The cluster's transaction.version goes down or up."""
        self.version = 3 - self.version
        self._ask(
            request_of(
                "UpdateFeatures",
                feature_updates=[
                    {
                        "feature": "transaction.version",
                        "max_version_level": self.version,
                        "upgrade_type": 1 if self.version == 2 else 2,
                    }
                ],
            )
        )

    async def elect_preferred(self) -> None:
        """Every partition goes back to its preferred leader."""
        self._ask(request_of("ElectLeaders", election_type=0, topic_partitions=None))

    async def move_partition(self) -> None:
        """A partition, of a coordinator perhaps, is to lie on two brokers or on three, in any order."""
        topic, partitions = (
            ("input", PARTITIONS),
            ("output", PARTITIONS),
            ("__transaction_state", 3),
            ("__consumer_offsets", 3),
        )[self._draw(4)]
        left = list(range(1, len(self.brokers) + 1))
        replicas = [left.pop(self._draw(len(left))) for _ in range(2 + self._draw(2))]
        partition = {"partition_index": self._draw(partitions), "replicas": replicas}
        self._ask(request_of("AlterPartitionReassignments", topics=[{"name": topic, "partitions": [partition]}]))

    # -- inside

    def _ask(self, request: Message) -> None:
        """Asks the controller for something by way of any broker that serves; whether it comes to it is luck."""
        name = self._broker()
        machine, node = self.world.machine(name), self.brokers[name].node
        if machine.process is not None and node is not None and is_up(node):
            machine.process.context.run(node.controller.request, request, lambda _answer: None, timeout_ms=5_000)

    def _crash(self, name: str) -> None:
        if self.power is Power.OFF and self._draw(2):
            self.world.machine(name).lose_power()
        else:
            self.world.machine(name).kill()

    async def _all_in_sync(self) -> bool:
        """Waits until every broker serves and every replica is in sync; returns whether it came to that."""
        deadline = self.world.loop.time() + 60
        while self.world.loop.time() < deadline:
            self.world.network.heal()
            images = [broker.node.image for broker in self.brokers.values() if broker.node is not None]
            newest = max(images, key=lambda image: image.offset)
            if (
                all(self.world.machine(name).process is not None for name in self.brokers)
                and all(self._is_registered(broker, newest) for broker in self.brokers.values())
                and all(not broker.fenced for broker in newest.brokers.values())
                and all(len(p.isr) == len(p.replicas) for _, _, p in newest.partitions())
            ):
                return True
            await asyncio.sleep(0.5)
        return False

    @staticmethod
    def _is_registered(broker: Broker, image: MetadataImage) -> bool:
        """Whether an image has the registration of a broker's running process, not of one that was killed."""
        node = broker.node
        known = image.brokers.get(node.node_id) if node is not None else None
        return node is not None and known is not None and known.incarnation_id == node.lifecycle.incarnation_id

    def _restart_later(self, name: str) -> None:
        """Soon or later, while other things happen."""
        delay = self.world.rng.random() * (DOWN_SECONDS_MAX if self._draw(3) == 0 else 2.0)
        self.world.loop.call_later(delay, self._start, name)

    def _start(self, name: str) -> None:
        machine = self.world.machine(name)
        if machine.process is None:
            machine.start(self.brokers[name])

    def _broker(self) -> str:
        return list(self.brokers)[self._draw(len(self.brokers))]

    def _draw(self, stop: int) -> int:
        return self.world.rng.randrange(stop)

    async def _pause(self, up_to_s: float) -> None:
        await asyncio.sleep(self.world.rng.random() * up_to_s)


def _nothing(one: str, other: str) -> None:
    """Nothing happens."""
