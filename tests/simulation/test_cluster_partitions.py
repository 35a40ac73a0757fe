"""What partitions and slow links may not do to a cluster: transactions that hang, leaders that move for nothing, elections without need."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client import KafkaError, Producer, TopicPartition
from barnabas.client.types import TransactionVersion
from barnabas.testing.simulation.world import Ports
from barnabas.testing.world.pipe import Flow
from tests.support.simulation.cluster import bootstrap
from tests.support.simulation.cluster_story import Story, clients, committed, create, open_transactions, tell
from tests.support.simulation.trio import SESSION_S
from tests.support.simulation.workload import read_all

pytestmark = pytest.mark.simulation

TIMEOUT_MS = 10_000  # of transactions
LATE_MS = 10_000  # after it, the last stable offset must have moved on


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_outlives_a_partition_leader_that_is_away_for_a_minute(version: TransactionVersion) -> None:
    """The only replica of a partition is away when the transaction commits: its readers wait and then see all of it."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "solo", 3, 1))
        victim = ""
        seen: dict[str, Any] = {}

        async def worker(ports: Ports) -> None:
            nonlocal victim
            patient = {"max_block_ms": 180_000, **clients(ports)}  # the second commit waits for the first one's markers
            async with Producer(transactional_id="t", transaction_version=version, **patient) as producer:
                async with producer.transaction():  # so that the coordinator is known
                    await producer.send("solo", b"before", partition=0)
                coordinator = there.leader(
                    "__transaction_state", there.node("broker-1").transactions.host.partition_of("t")
                )
                away = next(p for p in range(3) if there.leader("solo", p) != coordinator)
                victim = there.leader("solo", away)
                await producer.begin_transaction()
                for partition in range(3):
                    for number in range(5):
                        await producer.send("solo", b"%d-%d" % (partition, number), partition=partition)
                await producer.flush()
                world.network.isolate(victim)
                began = world.loop.time()
                await producer.commit_transaction()
                seen["commit"] = world.loop.time() - began
                seen["away"] = away
                await producer.begin_transaction()
                await producer.send("solo", b"after", partition=(away + 1) % 3)
                await producer.commit_transaction()
                seen["next"] = world.loop.time()

        done = world.machine("worker").start(worker)
        await there.until(lambda: "commit" in seen, 30)
        assert seen["commit"] < SESSION_S + 2  # it waits for the coordinator's replicas, no longer for the markers
        await asyncio.sleep(60)
        assert "next" not in seen  # one transaction after the other
        away = seen["away"]
        near = [TopicPartition("solo", p) for p in range(3) if p != away and there.leader("solo", p) != victim]
        found = await world.machine("reader").start(lambda ports: read_all(ports, near, "read_committed", bootstrap()))
        for tp in near:
            assert [value for value in found[tp.partition] if value != b"before"] == [
                b"%d-%d" % (tp.partition, n) for n in range(5)
            ]
        healed = world.loop.time()
        world.network.heal()
        await done
        assert seen["next"] - healed < 5.0
        everything = await world.machine("reader").start(lambda ports: committed(ports, "solo", 3))
        for partition, values in everything.items():
            assert values[partition == 0 :][:5] == [b"%d-%d" % (partition, n) for n in range(5)]
        await world.machine("reader").start(lambda ports: open_transactions(ports, "solo", 3))

    tell(16, story)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("added", [False, True], ids=["first batch", "second batch"])
def test_a_batch_that_comes_after_the_end_of_its_transaction_is_refused(
    version: TransactionVersion, added: bool
) -> None:
    """It lay in the network while the transaction was aborted by its time-out, and its producer is dead (KIP-890)."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 2, 3))
        late = there.leader("t", 1)
        if there.leader("t", 0) == late:
            raise AssertionError("both partitions have one leader")

        async def worker(ports: Ports) -> None:
            async with Producer(
                transactional_id="t", transaction_version=version, transaction_timeout_ms=TIMEOUT_MS, **clients(ports)
            ) as producer:
                async with producer.transaction():  # so that every connection is there
                    for partition in (0, 1):
                        await producer.send("t", b"before", partition=partition)
                await producer.begin_transaction()
                await producer.send("t", b"seen", partition=0)
                if added:
                    await producer.send("t", b"seen", partition=1)
                await producer.flush()
                world.network.cut("worker", late, both_ways=False)
                await producer.send("t", b"late", partition=1)
                await asyncio.sleep(3600)

        world.machine("worker").start(worker)
        await asyncio.sleep(5)
        world.machine("worker").lose_power()  # nothing tells the brokers that its connections are over
        await asyncio.sleep((TIMEOUT_MS + LATE_MS) / 1000 - 5)
        await world.machine("reader").start(lambda ports: open_transactions(ports, "t", 2))
        delivered = world.network.bytes_delivered
        world.network.heal()
        await asyncio.sleep(1)
        assert world.network.bytes_delivered > delivered
        log = there.node(late).replicas.leader("t", 1).log
        assert b"late" not in bytes(log.read(0, 1 << 20, end_offset=log.log_end_offset).records)
        await world.machine("reader").start(lambda ports: open_transactions(ports, "t", 2))
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 2))
        assert found == {0: [b"before"], 1: [b"before"]}

    tell(13, story)


def test_a_slow_network_moves_no_leaders() -> None:
    """A tenth of a second each way: work goes on, and nobody loses leadership over it."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 6, 3))
        node = there.node("broker-1")
        epoch = node.quorum.leader_epoch
        epochs = [partition.leader_epoch for _, _, partition in node.image.partitions()]

        async def worker(ports: Ports) -> None:
            async with Producer(**clients(ports)) as producer:
                for number in range(300):
                    await producer.send("t", b"%d" % number, partition=number % 6)
                    await asyncio.sleep(0.2)
                await producer.flush()

        await world.machine("worker").start(worker)
        assert node.quorum.leader_epoch == epoch
        assert [partition.leader_epoch for _, _, partition in node.image.partitions()] == epochs
        assert all(len(partition.isr) == 3 for _, _, partition in node.image.partitions())

    tell(10, story, Flow(latency_s=0.1))


@pytest.mark.parametrize("heard", [False, True], ids=["sends and hears nothing", "hears and is not heard"])
@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_one_way_partition_of_a_controller(leads: bool, heard: bool) -> None:
    """A follower that is half cut off disturbs nobody (pre-vote); a leader gives up, and the others go on without it."""

    async def story(there: Story) -> None:
        world = there.world
        nodes = {name: there.node(name) for name in there.brokers}
        leader = next(name for name, node in nodes.items() if node.quorum.is_leader)
        victim = leader if leads else next(name for name in nodes if name != leader)
        others = [name for name in nodes if name != victim]
        epoch = nodes[leader].quorum.leader_epoch
        for other in others:
            world.network.cut(*((other, victim) if not heard else (victim, other)), both_ways=False)
        await asyncio.sleep(30)
        after = {name: node.quorum.leader_epoch for name, node in nodes.items()}
        if leads:
            assert not nodes[victim].quorum.is_leader
            (new,) = [name for name in others if nodes[name].quorum.is_leader]
            assert after[new] <= epoch + 3
        else:
            assert nodes[leader].quorum.is_leader
            assert after[leader] == epoch  # nobody was made to vote
        # A new controller fences nobody who is well, and whoever is not heard within its session.
        image = nodes[others[0]].image
        assert [f"broker-{broker.broker_id}" for broker in image.brokers.values() if broker.fenced] == [victim]
        settled = {name: nodes[name].quorum.leader_epoch for name in others}
        world.network.heal()
        await asyncio.sleep(10)
        assert {name: nodes[name].quorum.leader_epoch for name in others} == settled  # it comes back as a follower
        assert nodes[victim].quorum.leader_epoch == settled[others[0]]
        assert not any(broker.fenced for broker in nodes[others[0]].image.brokers.values())

    tell(25, story)


def test_a_new_controller_fences_a_broker_that_it_cannot_reach_and_no_other() -> None:
    """The controller changes while a broker is cut off: its session does not begin again with the new controller."""

    async def story(there: Story) -> None:
        world = there.world
        former = next(name for name in there.brokers if there.node(name).quorum.is_leader)
        silent, witness = (name for name in there.brokers if name != former)
        fenced: dict[str, float] = {}

        def note() -> bool:
            for broker in there.node(witness).image.brokers.values():
                if broker.fenced:
                    fenced.setdefault(f"broker-{broker.broker_id}", world.loop.time())
            return silent in fenced

        await asyncio.sleep(5)
        world.network.isolate(silent)
        await asyncio.sleep(5)
        world.machine(former).process.context.run(there.node(former).quorum.resign)  # type: ignore[union-attr]  # it runs
        await there.until(lambda: there.node(witness).quorum.is_leader or there.node(former).quorum.is_leader, 5)
        began = world.loop.time()
        await there.until(note, 2)
        assert fenced[silent] - began > 0.9  # so long it may be heard of over another connection
        await asyncio.sleep(20)
        note()
        assert list(fenced) == [silent]
        world.network.heal()
        await there.until(lambda: not any(b.fenced for b in there.node(witness).image.brokers.values()), 5)

    tell(27, story)


def test_a_client_that_was_cut_off_for_a_minute_goes_on_at_once() -> None:
    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 3, 3))
        sent: list[float] = []

        async def worker(ports: Ports) -> None:
            async with Producer(**clients(ports)) as producer:
                number = 0
                while True:
                    try:
                        await producer.send_and_wait("t", b"%d" % number, partition=number % 3)
                        sent.append(world.loop.time())
                    except KafkaError:
                        pass
                    number += 1
                    await asyncio.sleep(0.1)

        world.machine("worker").start(worker)
        await asyncio.sleep(5)
        for name in there.brokers:
            world.network.cut("worker", name)
        await asyncio.sleep(60)
        count, healed = len(sent), world.loop.time()
        world.network.heal()
        await there.until(lambda: len(sent) > count + 3, 10)
        assert sent[count] - healed < 5.0  # the kernel's own attempts to connect double their distance: 1, 2, 4 s

    tell(9, story)
