"""An idempotent producer whose first batch waits on a leader that is cut off from the other brokers, by raw requests.

A client that learns of the next leader, and sends its second batch there, may infer from the acknowledgement that the first one was
written: sequences have no gaps (librdkafka does, when the first batch is refused at that very moment). Two rules prevent it, each of
its own: the old leader refuses what waits as soon as its session is over, before there can be another leader; and the next
leader refuses the second batch, because it knows that the producer has never written there.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.testing.simulation.invariants import check_acknowledged
from barnabas.testing.simulation.world import Ports
from tests.support.simulation.brokers import converged
from tests.support.simulation.cluster_chaos import ClusterChaos, Power
from tests.support.simulation.cluster_story import Story, batch, code_of, committed, connect, create, tell
from tests.support.simulation.trio import SESSION_S

pytestmark = pytest.mark.simulation

SEEDS = range(*map(int, os.environ.get("BARNABAS_SEEDS", "0:2").split(":")))
PARTITIONS = 3
TRIES_MAX = 100  # of one producer to have a batch accepted


@pytest.mark.parametrize("cut", ["from the brokers", "from everyone"])
def test_the_first_batch_of_a_producer_waits_on_a_leader_that_is_cut_off(cut: str) -> None:
    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 1, 3))
        old = there.leader("t", 0)
        others = [name for name in there.brokers if name != old]
        told: dict[str, Any] = {}

        async def client(ports: Ports) -> None:
            near, far = await connect(ports, old), await connect(ports, others[0])
            identity = await far.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
            for other in others:
                world.network.cut(old, other)
            first = near.send(batch(ports, identity.producer_id, 0), 9)
            await asyncio.sleep(1)
            if cut == "from everyone":
                world.network.isolate(old)
            else:
                await there.until(lambda: not there.node(old).lifecycle.may_lead(), SESSION_S + 1)
                assert there.leader("t", 0, others[0]) == old, "another leads before the old one has stopped"
                told["first"] = code_of(await near.receive(first))
                told["newer"] = code_of(await near.call(batch(ports, identity.producer_id, 1), 9))
            await there.until(lambda: there.leader("t", 0, others[0]) != old, 2 * SESSION_S)
            new = there.leader("t", 0, others[0])
            await there.until(lambda: there.leader("t", 0, new) == new, SESSION_S)
            peer = await connect(ports, new)
            for what, sequence in (("second", 1), ("first again", 0), ("second again", 1)):
                told[what] = code_of(await peer.call(batch(ports, identity.producer_id, sequence), 9))

        await world.machine("client").start(client)
        if cut == "from the brokers":
            assert (told.pop("first"), told.pop("newer")) == (ErrorCode.NOT_LEADER_OR_FOLLOWER,) * 2
        assert told == {
            "second": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            "first again": ErrorCode.NONE,
            "second again": ErrorCode.NONE,
        }
        world.network.heal()
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 1))
        assert found == {0: [b"0", b"1"]}

    tell(31, story)


def test_a_leader_that_is_cut_off_commits_by_fetches_that_arrive_after_its_successor_has_committed_more() -> None:
    """Each in-sync replica held the record when it sent its fetch. So the next leader has the record."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 1, 3))
        old = there.leader("t", 0)
        others = [name for name in there.brokers if name != old]
        states: list[tuple[bool, int]] = []  # of the old leader: whether it leads, its high watermark

        def replica(name: str) -> Replica:
            found = there.node(name).replicas.get("t", 0)
            assert found is not None
            return found

        def note(source: str, target: str) -> None:
            if target == old:
                states.append((replica(old).is_leader, replica(old).high_watermark))

        async def client(ports: Ports) -> None:
            near, far = await connect(ports, old), await connect(ports, others[0])
            identity = await far.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
            for other in others:
                world.network.cut(other, old, both_ways=False)  # their next fetches are delayed
            near.send(batch(ports, identity.producer_id, 0), 9)
            await there.until(lambda: all(replica(other).log.log_end_offset == 1 for other in others), 1)
            world.network.isolate(old)
            await there.until(lambda: any(replica(other).is_leader for other in others), 2 * SESSION_S)
            new = next(other for other in others if replica(other).is_leader)
            peer = await connect(ports, new)
            for sequence in range(1, 4):
                assert code_of(await peer.call(batch(ports, identity.producer_id, sequence), 9)) is ErrorCode.NONE

        await world.machine("client").start(client)
        assert replica(old).is_leader
        assert replica(old).high_watermark == 0
        there.watch.on_delivery = note
        world.network.heal()
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 1))
        assert found == {0: [b"0", b"1", b"2", b"3"]}
        assert (True, 1) in states

    tell(31, story)


class Hasty:
    """A new producer that sends two batches of one record to a partition, and infers as librdkafka does.

    It sends the second batch to the next leader that any broker names, whatever became of the first one; an acknowledgement of
    the second counts for both. OUT_OF_ORDER_SEQUENCE_NUMBER makes it send the first one again.
    """

    def __init__(self, ports: Ports, number: int, there: Story) -> None:
        self.acknowledged: list[bytes] = []
        self.partition = ports.rng.randrange(PARTITIONS)
        self._ports = ports
        self._names = list(there.brokers)
        self._values = [b"%d-first" % number, b"%d-second" % number]
        self._producer_id = -1

    async def run(self) -> None:
        while self._producer_id < 0:
            identity = await self._ask(
                self._any(), InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4
            )
            self._producer_id = -1 if identity is None or identity.error_code else identity.producer_id
        first = await self._leader()
        if await self._send(first, 0) == ErrorCode.NONE:
            self.acknowledged.append(self._values[0])
        for _ in range(TRIES_MAX):
            leader = await self._leader()
            code = await self._send(leader, 1)
            if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                code = await self._send(leader, 0)
                if code == ErrorCode.NONE:
                    self.acknowledged = self._values[:1]
                    continue
            if code == ErrorCode.NONE:
                self.acknowledged = self._values
                return
            await asyncio.sleep(0.2)

    def _any(self) -> str:
        return self._names[self._ports.rng.randrange(len(self._names))]

    async def _leader(self) -> str:
        """As any broker names it."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        while True:
            described = await self._ask(self._any(), request, 9)
            if described is not None and described.topics[0].error_code == 0:
                for partition in described.topics[0].partitions:
                    if partition.partition_index == self.partition and partition.leader_id >= 0:
                        return f"broker-{partition.leader_id}"
            await asyncio.sleep(0.2)

    async def _send(self, leader: str, sequence: int) -> ErrorCode:
        request = batch(self._ports, self._producer_id, sequence, self.partition, self._values[sequence])
        answer = await self._ask(leader, request, 9)
        return ErrorCode.NETWORK_EXCEPTION if answer is None else code_of(answer)

    async def _ask(self, name: str, request: Any, version: int) -> Any:
        """The answer within ten seconds, else None."""
        try:
            async with asyncio.timeout(10):
                peer = await connect(self._ports, name)
            try:
                return await peer.call(request, version)
            finally:
                peer.writer.close()
        except (OSError, EOFError, TimeoutError):
            return None


def run_cuts(seed: int, *, apart: bool = False) -> int:
    """Brokers are cut off from each other, not from the clients, while producers begin. Returns how many records were acknowledged.

    With `apart` the controllers are other machines, and brokers are cut off from these, too.
    """
    producers: list[Hasty] = []

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", PARTITIONS, 3))
        cutting = True

        async def begin(ports: Ports) -> None:
            async with asyncio.TaskGroup() as running:
                while cutting:
                    producers.append(Hasty(ports, len(producers), there))
                    running.create_task(producers[-1].run())
                    await asyncio.sleep(ports.rng.random())

        writing = world.machine("newcomers").start(begin)
        chaos = ClusterChaos(world, there.brokers, there.watch, {}, power=Power.ON)
        chaos.faults = [chaos.zombie, chaos.zombie, chaos.zombie, chaos.cut_brokers, chaos.freeze, chaos.reset_brokers]

        async def cut_from_controllers() -> None:
            name = list(there.brokers)[world.rng.randrange(3)]
            for controller in there.controllers:
                world.network.cut(name, controller)
            await asyncio.sleep(world.rng.random() * 20)
            if world.rng.randrange(2):
                await chaos.zombie()
            world.network.heal(name)

        if apart:
            chaos.faults += [cut_from_controllers] * 6
        await chaos.run(6)
        cutting = False
        await writing
        await converged(there.brokers)
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", PARTITIONS))
        for producer in producers:
            check_acknowledged(producer.acknowledged, found[producer.partition])

    tell(seed, story, **({"process.roles": "broker"} if apart else {}))
    return sum(len(producer.acknowledged) for producer in producers)


@pytest.mark.parametrize("seed", SEEDS)
def test_producers_that_begin_while_brokers_are_cut_off_from_each_other(seed: int) -> None:
    assert run_cuts(seed) > 50


@pytest.mark.parametrize("seed", SEEDS)
def test_producers_that_begin_while_brokers_are_cut_off_from_the_controllers(seed: int) -> None:
    assert run_cuts(seed, apart=True) > 50


@pytest.mark.soak
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("first", range(1_000, 1_200, 20))
def test_many_producers_that_begin_while_brokers_are_cut_off_from_each_other(first: int, apart: bool) -> None:
    for seed in range(first, first + 20):
        run_cuts(seed, apart=apart)
