"""The exactly-once copy in a simulated world: a broker, a feeder, a copier with deliberate aborts, and the checks.

Broker, client and copier are the real code; only the ports are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node.node import Node
from barnabas.client import (
    Admin,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    Record,
    RecordMetadata,
    TopicPartition,
)
from barnabas.client.exactly_once import CopyProgress, NewMessage, exactly_once
from barnabas.client.types import IsolationLevel, TransactionVersion
from barnabas.testing.simulation.invariants import check_acknowledged, check_copy, check_live, check_stable
from barnabas.testing.simulation.world import Ports, World

BROKER = "broker"
BOOTSTRAP = f"{BROKER}:9092"
PARTITIONS = 3
SOURCE = [TopicPartition("input", partition) for partition in range(PARTITIONS)]
STALE_READS_MAX = 30  # two seconds apart: longer than any partition lasts
TARGET = [TopicPartition("output", partition) for partition in range(PARTITIONS)]

Program = Callable[[Ports], Coroutine[Any, Any, None]]


class Deliberate(Exception):
    """The exception by which the copier aborts its own transactions."""


@dataclass
class Journal:
    """What the test records of the run, across all processes."""

    acknowledged: dict[int, list[bytes]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    committed: int = 0
    aborted: int = 0
    copied: int = 0  # records in transactions whose commit was answered
    failures: list[str] = field(default_factory=list)
    seen: dict[int, list[bytes]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    bootstrap: str = BOOTSTRAP
    login: dict[str, Any] = field(default_factory=dict)  # how its clients log in

    def clients(self, ports: Ports) -> dict[str, Any]:
        """The arguments of each client."""
        world = {"clock": ports.clock, "rng": ports.rng, "network": ports.network}
        return {"bootstrap_servers": self.bootstrap, **world, **self.login}


class Broker:
    """The program of a broker, which the test can stop cleanly. If it fails, the world fails.

    Attributes:
        node: of the running process, else of the last one.
    """

    def __init__(self, **settings: str) -> None:
        self.settings = {
            "node.id": "1",
            "listeners": f"PLAINTEXT://{BOOTSTRAP}",
            "log.dirs": "data",
            "num.partitions": str(PARTITIONS),
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
            **settings,
        }
        self.node: Node | None = None
        self.disk_may_fail = False
        self._ended: asyncio.Future[None] | None = None

    async def __call__(self, ports: Ports) -> None:
        try:
            await self._serve(ports)
        except OSError:
            if not self.disk_may_fail:
                raise
            if self._ended is not None and self._ended.done():
                self._ended.exception()  # the node gave up while it started: it was told twice

    async def _serve(self, ports: Ports) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self.node = node = Node(
            BrokerConfig(self.settings),
            clock=ports.clock,
            rng=ports.rng,
            disk=ports.disk,
            network=ports.network,
            on_fatal=self._ended.set_exception,
        )
        await node.start()
        await self._ended
        await node.stop()

    def stop(self) -> None:
        """SIGTERM: the program ends some time later."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def feeder(journal: Journal, *, records: int, pause_s: float, burst_max: int = 1, padding_max: int = 0) -> Program:
    """Sends `records` to each partition of the input, in bursts with pauses, and writes down what was acknowledged.

    The records of a burst leave in small batches, several in flight at a time.
    """

    async def program(ports: Ports) -> None:
        rng = ports.rng
        async with Producer(
            max_batch_size=500,
            compression_type=(None, "lz4", "zstd")[rng.randrange(3)],
            **journal.clients(ports),
        ) as producer:
            sent = 0
            while sent < records:
                burst = min(1 + rng.randrange(burst_max), records - sent)
                waiting: list[tuple[int, bytes, asyncio.Future[RecordMetadata]]] = []
                for number in range(sent, sent + burst):
                    for partition in range(PARTITIONS):
                        value = b"%d-%d" % (partition, number)
                        if padding_max and rng.randrange(4) == 0:
                            value += b"." * rng.randrange(padding_max)
                        waiting.append((partition, value, await producer.send("input", value, b"k", partition)))
                for partition, value, future in waiting:
                    await future
                    journal.acknowledged[partition].append(value)
                sent += burst
                await asyncio.sleep(pause_s * rng.random() * 2)

    return program


class Membership(Enum):
    """How a worker gets its partitions."""

    DYNAMIC = "a member that is new after each restart"
    STATIC = "a member that keeps its place (group.instance.id)"
    NONE = "no member: every partition, by hand"


def copier(
    journal: Journal,
    *,
    pause_s: float,
    abort_one_in: int,
    membership: Membership = Membership.DYNAMIC,
    transaction_version: TransactionVersion | None = 2,
    number: int = 1,
) -> Program:
    """Copies input to output by the client's `exactly_once`; starts again after an error, as a supervisor would.

    Args:
        transaction_version: None: what the cluster has finalized, transaction by transaction.
        number: among several copiers of the group.
    """
    name = "copy" if number == 1 else f"copy-{number}"

    def transform(record: Record[Any, Any]) -> list[NewMessage]:
        return [NewMessage("output", record.value, record.key, record.headers, record.partition)]

    async def live(ports: Ports) -> None:
        clients = journal.clients(ports)
        async with (
            Producer(
                transactional_id=name,
                transaction_timeout_ms=20_000,
                transaction_version=transaction_version,
                **clients,
            ) as producer,
            Consumer(
                *(() if membership is Membership.NONE else ("input",)),
                group_id="copy",
                group_instance_id=f"{name}-member" if membership is Membership.STATIC else None,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=10_000,
                **clients,
            ) as consumer,
        ):
            if membership is Membership.NONE:
                consumer.assign(SOURCE)
            known = CopyProgress()

            async def on_transaction(progress: CopyProgress) -> bool:
                journal.committed += progress.committed - known.committed
                journal.aborted += progress.aborted - known.aborted
                journal.copied += progress.records_in - known.records_in
                known.committed, known.aborted = progress.committed, progress.aborted
                known.records_in = progress.records_in
                await asyncio.sleep(pause_s * ports.rng.random() * 2)
                return False

            await exactly_once(
                consumer,
                producer,
                transform,
                poll_timeout_ms=1_000,
                on_transaction=on_transaction,
                vetoes=lambda _progress: ports.rng.randrange(abort_one_in) == 0,
            )

    async def program(ports: Ports) -> None:
        while True:
            try:
                await live(ports)
            except KafkaError as error:
                journal.failures.append(f"{asyncio.get_running_loop().time():.3f} {type(error).__name__}: {error}")
            await asyncio.sleep(1)

    return program


def churner(journal: Journal) -> Program:
    """Repeatedly creates a topic, writes to it, reads it back and deletes it, often with the same name."""

    async def live(ports: Ports, name: str) -> bool:
        """Handles one topic; returns whether its name may be used again: no request for it can be in flight."""
        clients = journal.clients(ports)
        acknowledged: dict[int, list[bytes]] = {0: [], 1: []}
        async with Admin(**clients) as admin:
            await admin.create_topics([NewTopic(name, 2, 3)])
            async with Producer(delivery_timeout_ms=20_000, request_timeout_ms=10_000, **clients) as producer:
                for number in range(1 + ports.rng.randrange(20)):
                    value = b"%s-%d" % (name.encode(), number)
                    await producer.send_and_wait(name, value, partition=number % 2)
                    acknowledged[number % 2].append(value)
            partitions = [TopicPartition(name, partition) for partition in (0, 1)]
            # A leader that is cut off does not know what its successor has acknowledged.
            for _ in range(STALE_READS_MAX):
                found = await read_all(ports, partitions, "read_committed", journal.bootstrap, **journal.login)
                if all(set(values) <= set(found[partition]) for partition, values in acknowledged.items()):
                    break
                await asyncio.sleep(2)
            for partition, values in acknowledged.items():
                check_acknowledged(values, found[partition])
            began = asyncio.get_running_loop().time()
            await admin.delete_topics([name])
            return asyncio.get_running_loop().time() - began < 1

    async def program(ports: Ports) -> None:
        number, again = 0, False
        while True:
            number += not again
            try:
                again = await live(ports, f"churn-{number}")
            except KafkaError:
                again = False
            await asyncio.sleep(ports.rng.random() * 5)

    return program


def observer(journal: Journal) -> Program:
    """Reads the committed output until it is killed, and records it."""

    async def program(ports: Ports) -> None:
        async with Consumer(
            isolation_level="read_committed", auto_offset_reset="earliest", **journal.clients(ports)
        ) as consumer:
            consumer.assign(TARGET)
            while True:
                for tp, records in (await consumer.getmany(timeout_ms=60_000)).items():
                    journal.seen[tp.partition] += [record.value or b"" for record in records]

    return program


async def read_all(
    ports: Ports,
    partitions: list[TopicPartition],
    isolation_level: IsolationLevel,
    bootstrap: str = BOOTSTRAP,
    /,
    **login: Any,
) -> dict[int, list[bytes]]:
    """Every value of the partitions, in order of the offsets."""
    found: dict[int, list[bytes]] = {tp.partition: [] for tp in partitions}
    async with Consumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation_level,
        auto_offset_reset="earliest",
        clock=ports.clock,
        rng=ports.rng,
        network=ports.network,
        **login,
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while True:
            positions = [await consumer.position(tp) for tp in partitions]
            if all(position >= ends[tp] for tp, position in zip(partitions, positions, strict=True)):
                return found
            for tp, records in (await consumer.getmany(timeout_ms=1_000)).items():
                found[tp.partition] += [record.value or b"" for record in records]


async def judge(
    world: World, journal: Journal, *, settle_s: float = 120.0, workers: Sequence[str] = ("worker",)
) -> None:
    """Waits until the copy is complete, then checks it."""

    async def end_offsets(
        ports: Ports, partitions: list[TopicPartition], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        async with Consumer(isolation_level=isolation_level, **journal.clients(ports)) as consumer:
            return await consumer.end_offsets(partitions)

    async def program(ports: Ports) -> None:
        source = await read_all(ports, SOURCE, "read_uncommitted", journal.bootstrap, **journal.login)
        for partition, acknowledged in journal.acknowledged.items():
            check_acknowledged(acknowledged, source[partition])
        deadline = asyncio.get_running_loop().time() + settle_s
        while True:
            target = await read_all(ports, TARGET, "read_committed", journal.bootstrap, **journal.login)
            if sum(map(len, target.values())) >= sum(map(len, source.values())):
                break
            if asyncio.get_running_loop().time() > deadline:
                break  # check_copy says what is missing
            await asyncio.sleep(1)
        check_copy(source, target)
        for worker in workers:
            world.machine(worker).kill()  # what it had open is aborted by its time-out
        await asyncio.sleep(60)
        again = await read_all(ports, TARGET, "read_committed", journal.bootstrap, **journal.login)
        check_copy(source, again)
        for partition, values in journal.seen.items():
            check_live(values, again[partition])
        stable = await end_offsets(ports, TARGET, "read_committed")
        for tp, high_watermark in (await end_offsets(ports, TARGET, "read_uncommitted")).items():
            check_stable(stable[tp], high_watermark)

    await world.machine("judge").start(program)
