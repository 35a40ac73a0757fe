"""Consumers of the bundled client while unclean elections truncate what they read.

A topic has two replicas among three brokers, and whichever of them is alive may lead. Again and again the leader is left alone, by a
death or a network partition, takes records, and is then away while the other one leads. Consumers under every `auto_offset_reset`
read on all the time, cut off from all brokers now and then. In the end each of them must have seen the final log from its first record to
its last, in order and without a gap; what it saw before and is not there any more it must have been told of, or gone back over.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, KafkaError, NewTopic, Producer, Record, TopicPartition
from barnabas.client.consumer.core.fetch_state import LeaderEpochHistory
from barnabas.client.errors import LogTruncated, OffsetOutOfRange
from barnabas.client.types import AutoOffsetReset
from barnabas.testing.simulation.world import Ports, Program, World, WorldFailed
from tests.support.simulation.cluster_story import UnwatchedStory, clients
from tests.support.simulation.workload import read_all

pytestmark = pytest.mark.simulation

TP = TopicPartition("t", 0)
SEEDS = range(*map(int, os.environ.get("BARNABAS_UNCLEAN_SEEDS", "0:3").split(":")))
SOAK_SEEDS = range(1_000, 1_200)
ROUNDS = 5
POLICIES: tuple[AutoOffsetReset, ...] = ("none", "earliest", "latest")


class Skipped(AssertionError):
    """A consumer missed records, or went back unannounced."""


@dataclass
class View:
    """What a consumer takes for the log."""

    policy: AutoOffsetReset
    values: list[bytes] = field(default_factory=list)
    truncations: int = 0
    told: bool = False  # of a truncation, since the last record

    def see(self, record: Record[Any, Any]) -> None:
        """A record is given out."""
        self.go_to(record.offset)
        self.values.append(record.value)

    def go_to(self, position: int) -> None:
        """The next record comes from there."""
        end = len(self.values)
        if position > end:
            raise Skipped(f"{self.policy}: offset {position} comes after {end - 1}")
        if position < end:
            if self.policy == "none" and not self.told:
                raise Skipped(f"{self.policy}: offset {position} comes after {end - 1}, and nothing was said")
            self.truncations += 1
            del self.values[position:]
        self.told = False


class Truncating(UnwatchedStory):
    """Three brokers whose logs may lose what was committed."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.isolated: dict[str, None] = {}

    def state(self) -> tuple[int, list[int]]:
        """Leader and in-sync replicas, as a node that is up has it."""
        nodes = [b.node for name, b in self.brokers.items() if b.node is not None and self.world.machine(name).process]
        newest = max((node.image for node in nodes), key=lambda image: image.offset)
        partition = newest.partition(*TP)
        assert partition is not None
        return partition.leader, list(partition.isr)

    def leads(self, name: str) -> bool:
        return f"broker-{self.state()[0]}" == name

    def is_in_sync_alone(self, name: str) -> bool:
        return [f"broker-{number}" for number in self.state()[1]] == [name]

    def isolate(self, name: str) -> None:
        self.isolated[name] = None
        self.world.network.isolate(name)

    def heal(self, name: str) -> None:
        """Its links to all who are not isolated themselves."""
        self.isolated.pop(name, None)
        self.world.network.heal(name)
        for other in self.isolated:
            self.world.network.isolate(other)

    def up(self, name: str) -> None:
        self.heal(name)
        if self.world.machine(name).process is None:
            self.world.machine(name).start(self.brokers[name])

    def down(self, name: str) -> None:
        if self.world.rng.randrange(3):
            self.world.machine(name).kill()
        else:
            self.isolate(name)


def reader(view: View) -> Program[None]:
    """Reads from the first record on; where it is told of a truncation, it goes back to the offset named."""

    async def program(ports: Ports) -> None:
        async with Consumer(auto_offset_reset=view.policy, metadata_max_age_ms=5_000, **clients(ports)) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            while True:
                try:
                    polled = await consumer.getmany(timeout_ms=1_000, max_records=1 + ports.rng.randrange(20))
                except OffsetOutOfRange as told:
                    view.told = True
                    at = told.diverging_offset if isinstance(told, LogTruncated) else None
                    consumer.seek(TP, at or 0)
                    polled = {}
                for record in polled.get(TP, ()):
                    view.see(record)
                view.go_to(await consumer.position(TP, timeout_ms=600_000))
                await asyncio.sleep(ports.rng.random() * 0.3)

    return program


def writer() -> Program[None]:
    """Each value is one of a kind, so that no two branches of the log have the same record."""

    async def program(ports: Ports) -> None:
        number = 0
        while True:
            async with Producer(acks=1, delivery_timeout_ms=3_000, request_timeout_ms=2_000, **clients(ports)) as out:
                for _ in range(40):
                    number += 1
                    try:
                        await out.send_and_wait(*TP[:1], b"%d" % number, partition=0)
                    except KafkaError:
                        break
                    await asyncio.sleep(ports.rng.random() * 0.2)

    return program


async def truncations(there: Truncating) -> list[View]:
    """Elections, unclean ones among them; then everything heals, and each view is held against the final log."""
    world, rng = there.world, there.world.rng

    async def make(ports: Ports) -> None:
        async with Admin(**clients(ports)) as admin:
            configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
            await admin.create_topics([NewTopic(TP.topic, 1, 2, configs)])

    await world.machine("admin").start(make)
    views = [View(policy) for policy in POLICIES]
    for view in views:
        world.machine(f"reader-{view.policy}").start(reader(view))
    world.machine("writer").start(writer())
    await there.until(lambda: there.node("broker-1").image.partition(*TP), 10)
    partition = there.node("broker-1").image.partition(*TP)
    assert partition is not None
    both = [f"broker-{number}" for number in partition.replicas]
    for _ in range(ROUNDS):
        await there.until(lambda: len(there.state()[1]) == 2 and there.state()[0] > 0, 60)
        first = f"broker-{there.state()[0]}"
        (second,) = (name for name in both if name != first)
        await asyncio.sleep(rng.random() * 2)
        there.down(second)
        await there.until(partial(there.is_in_sync_alone, first), 40)
        await asyncio.sleep(rng.random() * 3)  # what is written now, only the lone leader has
        for policy in POLICIES:
            if rng.randrange(2):  # it comes back when the other branch may have grown beyond its position
                there.isolate(f"reader-{policy}")
        there.down(first)
        await asyncio.sleep(rng.random())
        there.up(second)
        await there.until(partial(there.leads, second), 60)
        await asyncio.sleep(rng.random() * 8)
        there.up(first)
        for name in list(there.isolated):
            there.heal(name)
    world.machine("writer").kill()
    await there.until(lambda: len(there.state()[1]) == 2, 60)
    await asyncio.sleep(20)
    final = (
        await world.machine("judge").start(lambda ports: read_all(ports, [TP], "read_uncommitted", "broker-1:9092"))
    )[0]
    for view in views:
        if view.values != final:
            at = next((i for i, (a, b) in enumerate(zip(view.values, final, strict=False)) if a != b), -1)
            raise Skipped(f"{view.policy}: {len(view.values)} values and not the {len(final)} of the log, from {at} on")
    return views


def run(seed: int) -> list[View]:
    with World(seed) as world:

        async def main() -> list[View]:
            there = Truncating(world)
            await there.start()
            return await truncations(there)

        return world.run(main(), time_limit_s=3600)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_record_of_the_final_log_is_seen_in_order(seed: int) -> None:
    assert sum(view.truncations for view in run(seed)) > 0, "some of what was read was truncated"


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_every_record_of_the_final_log_is_seen_in_order_of_many(seed: int) -> None:
    run(seed)


def test_a_consumer_that_knows_no_epochs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the checks: it reads on beyond the fork."""
    monkeypatch.setattr(LeaderEpochHistory, "note", lambda *_: None)
    for seed in SEEDS:
        try:
            run(seed)
        except WorldFailed as failure:
            if "Skipped" in str(failure):
                return
    pytest.fail("no seed has caught it")
