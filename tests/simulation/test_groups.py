"""A group of copiers on the simulated loop: members are killed, cut off and added, the broker dies, and the copy is exact.

Every member copies what it is assigned, in transactions of its own that carry the group's generation (KIP-447), in rebalances
with a barrier, without one (cooperative), and where the coordinator assigns (KIP-848). Whoever lost its partitions without noticing
must not commit for them: the copy would have records twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.broker.coordinator.groups import committing
from barnabas.client import Admin, Consumer, KafkaError, Producer, TopicPartition
from barnabas.client.admin import GroupDescription
from barnabas.testing.simulation.world import Machine, Ports, World, WorldFailed
from tests.support.simulation.workload import (
    BOOTSTRAP,
    PARTITIONS,
    SOURCE,
    Broker,
    Deliberate,
    Journal,
    Program,
    feeder,
    judge,
)

pytestmark = pytest.mark.simulation

MEMBERS = 4  # one more than there are partitions
FAULTS = 15
SOAK_SEEDS = range(50)
FORGETFUL_SEEDS = 10  # are tried until one catches a coordinator without a check
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {},
    "cooperative": {"partition_assignment_strategy": ["cooperative-sticky"]},
    "consumer": {"group_protocol": "consumer"},
}
SESSIONS = {  # as short as those of the classic members
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}
FLUSH = {"log.flush.interval.messages": "1"}


def sharer(
    journal: Journal, owned: dict[str, set[TopicPartition]], name: str, protocol: str, *, static: bool
) -> Program:
    """Copies its share of the input, in a transaction a poll; begins anew after an error, as a supervisor would."""

    async def transact(producer: Producer, consumer: Consumer, ports: Ports) -> None:
        batches = await consumer.getmany(timeout_ms=1_000)
        if not batches:
            return
        try:
            async with producer.transaction():
                for tp, records in batches.items():
                    for record in records:
                        await producer.send("output", record.value, key=record.key, partition=tp.partition)
                offsets = {tp: records[-1].offset + 1 for tp, records in batches.items()}
                await producer.send_offsets(offsets, consumer.group_metadata())
                if ports.rng.randrange(8) == 0:
                    raise Deliberate
            journal.committed += 1
        except Deliberate:
            journal.aborted += 1
            await consumer.seek_to_committed()

    async def live(ports: Ports) -> None:
        clients: dict[str, Any] = {
            "bootstrap_servers": BOOTSTRAP,
            "clock": ports.clock,
            "rng": ports.rng,
            "network": ports.network,
        }
        async with (
            Producer(transactional_id=f"copy-{name}", transaction_timeout_ms=20_000, **clients) as producer,
            Consumer(
                "input",
                group_id="share",
                group_instance_id=name if static else None,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=10_000,
                heartbeat_interval_ms=1_000,
                **PROTOCOLS[protocol],
                **clients,
            ) as consumer,
        ):
            while True:
                await transact(producer, consumer, ports)
                owned[name] = set(consumer.assignment())
                await asyncio.sleep(0.05 * ports.rng.random())

    async def program(ports: Ports) -> None:
        while True:
            try:
                await live(ports)
            except KafkaError as error:
                journal.failures.append(f"{asyncio.get_running_loop().time():.3f} {type(error).__name__}: {error}")
            await asyncio.sleep(0.5)

    return program


async def churn(world: World, journal: Journal, protocol: str = "eager") -> None:
    """Even seeds: power fails and acknowledgements wait for the disk. Odd seeds: the broker is killed."""
    power = world.seed % 2 == 0
    rng = world.rng
    broker = Broker(**SESSIONS, **(FLUSH if power else {}))
    node = world.machine("broker")
    node.start(broker)
    fed = world.machine("feeder").start(feeder(journal, records=150, pause_s=0.2))
    owned: dict[str, set[TopicPartition]] = {}
    names = [f"member-{number}" for number in range(MEMBERS)]
    programs = {name: sharer(journal, owned, name, protocol, static=rng.randrange(2) == 0) for name in names}
    machines: dict[str, Machine] = {name: world.machine(name) for name in programs}
    for name, machine in machines.items():
        machine.start(programs[name])
    for _ in range(FAULTS):
        await asyncio.sleep(rng.random() * 4.0)
        name = sorted(machines)[rng.randrange(MEMBERS)]
        fault = rng.randrange(4)
        if fault == 0:
            if power:
                node.lose_power()
            else:
                node.kill()
            node.start(broker)
        elif fault == 1:
            machines[name].kill()
            await asyncio.sleep(12.0 * rng.randrange(2))  # beyond its session, or not
            machines[name].start(programs[name])
        elif fault == 2:
            world.network.cut(name, "broker", both_ways=bool(rng.randrange(2)))
            await asyncio.sleep(rng.random() * (25.0 if rng.randrange(2) else 3.0))
            world.network.heal()
        else:
            world.network.reset_links(name, "broker")
    await fed
    await judge(world, journal, settle_s=180.0)
    group = await world.machine("observer").start(describe)
    assert (group.state, len(group.members)) == ("Stable", MEMBERS)
    assert sorted(tp.partition for held in owned.values() for tp in held) == list(range(PARTITIONS))


async def describe(ports: Ports) -> GroupDescription:
    """The group, when it is at rest."""
    async with Admin(bootstrap_servers=BOOTSTRAP, clock=ports.clock, rng=ports.rng, network=ports.network) as admin:
        while True:
            group = await admin.describe_group("share")
            if group.state == "Stable" and len(group.members) == MEMBERS:
                return group
            await asyncio.sleep(1)


@pytest.mark.parametrize(("protocol", "seed"), [("eager", 0), ("cooperative", 1), ("consumer", 0)])
def test_members_and_broker_come_and_go(protocol: str, seed: int) -> None:
    members_and_broker_come_and_go(protocol, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_and_broker_come_and_go_with_many_seeds(protocol: str, seed: int) -> None:
    members_and_broker_come_and_go(protocol, seed)


def members_and_broker_come_and_go(protocol: str, seed: int) -> None:
    journal = Journal()
    with World(seed) as world:
        world.run(churn(world, journal, protocol), time_limit_s=3600)
    assert journal.committed > 20
    assert journal.aborted > 0


@pytest.mark.parametrize(
    ("protocol", "check", "first"), [("eager", "check_classic", 20), ("consumer", "check_consumer", 0)]
)
def test_a_coordinator_that_forgets_generations_is_caught(
    monkeypatch: pytest.MonkeyPatch, protocol: str, check: str, first: int
) -> None:
    """Without the check of KIP-447 some member commits for partitions that are another's by now."""
    monkeypatch.setattr(committing, check, lambda *_: None)
    caught = []
    for seed in range(first, first + FORGETFUL_SEEDS):
        try:
            with World(seed) as world:
                world.run(churn(world, Journal(), protocol), time_limit_s=3600)
        except WorldFailed as failure:
            caught.append(str(failure))
            break
    assert caught
    assert "doubled" in caught[0]


Judge = Callable[[Consumer, Admin, asyncio.Task[None]], Awaitable[None]]


def run_waiting(judge_it: Judge, how: str, **settings: Any) -> None:
    """Calls `judge_it` when a member has got the only record of its topic and waits for another one."""

    async def wait_for_more(consumer: Consumer, got: asyncio.Event) -> None:
        async with consumer:
            if how == "async for":
                async for _record in consumer:
                    got.set()
            while True:
                if how == "getone":
                    await consumer.getone()
                    got.set()
                elif await consumer.getmany(timeout_ms=24 * 3_600_000):
                    got.set()

    async def program(ports: Ports) -> None:
        clients = Journal().clients(ports)
        async with Producer(**clients) as producer, Admin(**clients) as admin:
            await producer.send_and_wait("input", b"tea", partition=0)
            consumer = Consumer("input", group_id="share", auto_offset_reset="earliest", **settings, **clients)
            got = asyncio.Event()
            waiting = asyncio.create_task(wait_for_more(consumer, got))
            await got.wait()
            await judge_it(consumer, admin, waiting)
            waiting.cancel()
            await asyncio.wait([waiting])

    async def story(world: World) -> None:
        world.machine("broker").start(Broker(**SESSIONS))
        await world.machine("member").start(program)

    with World(1) as world:
        world.run(story(world), time_limit_s=600)


@pytest.mark.parametrize("how", ["async for", "getone", "getmany"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_poll_that_waits_commits_the_records_before_it(protocol: str, how: str) -> None:
    async def judge_it(consumer: Consumer, admin: Admin, waiting: asyncio.Task[None]) -> None:
        await asyncio.sleep(10)  # twice auto_commit_interval_ms
        assert await consumer.committed(TopicPartition("input", 0)) == 1
        assert {tp: at.lag for tp, at in (await admin.group_lag("share")).items()} == dict.fromkeys(SOURCE, 0)

    run_waiting(judge_it, how, group_protocol=protocol)


def test_a_poll_that_is_cancelled_while_it_waits_commits_the_records_before_it() -> None:
    async def judge_it(consumer: Consumer, admin: Admin, waiting: asyncio.Task[None]) -> None:
        waiting.cancel()
        await asyncio.wait([waiting])
        assert [at.committed for at in (await admin.group_lag("share")).values()] == [1, 0, 0]

    run_waiting(judge_it, "async for")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_poll_that_waits_longer_than_max_poll_interval_stays_in_the_group(protocol: str) -> None:
    async def judge_it(consumer: Consumer, admin: Admin, waiting: asyncio.Task[None]) -> None:
        before = consumer.group_metadata()
        await asyncio.sleep(60)
        assert consumer.group_metadata() == before

    run_waiting(judge_it, "getone", group_protocol=protocol, max_poll_interval_ms=10_000, enable_auto_commit=False)
