"""Members of one group with one interface: the bundled client, aiokafka, librdkafka, kafka-python.

`Membership` has each poll in a task of its own (some clients wait in a poll for the others to join), commits what it
has read at once, and counts: a record that is read or committed after its offset was committed was read twice. A commit
that the group refuses because of a rebalance does not count.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from barnabas.client import Consumer, TopicPartition
from barnabas.client.errors import CommitFailed
from tests.support.clients.librdkafka import place_of

Read = tuple[str, int, int]  # topic, partition, offset
WAIT_S = 150.0  # Java takes a minute to start on a busy machine
POLL_MS = 20


class Member(ABC):
    """One member. `read` polls once; `commit` returns whether the group accepted the offsets of what was read."""

    client = ""
    leaving = False

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def read(self) -> list[Read]: ...

    @abstractmethod
    async def commit(self, offsets: dict[TopicPartition, int]) -> bool: ...

    @abstractmethod
    def held(self) -> set[TopicPartition]: ...

    @abstractmethod
    async def stop(self) -> None: ...


class Bundled(Member):
    """The bundled client."""

    client = "bundled"

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, **more: Any) -> None:
        own = (
            {"group_protocol": "consumer"} if strategy == "consumer" else {"partition_assignment_strategy": [strategy]}
        )
        self.consumer = Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            **{**own, **more},
        )

    async def start(self) -> None:
        await self.consumer.start()

    async def read(self) -> list[Read]:
        batches = await self.consumer.getmany(timeout_ms=POLL_MS, max_records=20)
        return [(r.topic, r.partition, r.offset) for records in batches.values() for r in records]

    async def commit(self, offsets: dict[TopicPartition, int]) -> bool:
        try:
            await self.consumer.commit(offsets)
        except CommitFailed:
            return False
        return True

    def held(self) -> set[TopicPartition]:
        return self.consumer.assignment()

    async def stop(self) -> None:
        await self.consumer.stop()


class Aiokafka(Member):
    """aiokafka: without a cooperative assignor and without KIP-848."""

    client = "aiokafka"
    STRATEGIES = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}  # noqa: RUF012 - of tests, never changed

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        self.consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            partition_assignment_strategy=[self.STRATEGIES[strategy]],
        )
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # It returns once it has joined, for which the others must poll.
        self._starting = asyncio.create_task(self.consumer.start())

    async def read(self) -> list[Read]:
        assert self._starting is not None
        if not self._starting.done():
            await asyncio.sleep(POLL_MS / 1000)
            return []
        await self._starting
        batches = await self.consumer.getmany(timeout_ms=POLL_MS, max_records=20)
        return [(r.topic, r.partition, r.offset) for records in batches.values() for r in records]

    async def commit(self, offsets: dict[TopicPartition, int]) -> bool:
        try:
            await self.consumer.commit({aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()})
        except (aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
            return False
        return True

    def held(self) -> set[TopicPartition]:
        return {TopicPartition(*tp) for tp in self.consumer.assignment()}

    async def stop(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        await self.consumer.stop()


class _Threaded(Member):
    """A client that blocks, on a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._held: set[TopicPartition] = set()

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def start(self) -> None:
        await self._call(self._start)

    async def read(self) -> list[Read]:
        found, self._held = await self._call(self._read)
        return found  # type: ignore[no-any-return]  # what _read says

    async def commit(self, offsets: dict[TopicPartition, int]) -> bool:
        return await self._call(self._commit, offsets)  # type: ignore[no-any-return]  # what _commit says

    def held(self) -> set[TopicPartition]:
        return self._held

    async def stop(self) -> None:
        self._held = set()
        await self._call(self._stop)
        self._thread.shutdown()

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _read(self) -> tuple[list[Read], set[TopicPartition]]: ...

    @abstractmethod
    def _commit(self, offsets: dict[TopicPartition, int]) -> bool: ...

    @abstractmethod
    def _stop(self) -> None: ...


class Librdkafka(_Threaded):
    """confluent-kafka, in both protocols."""

    client = "librdkafka"
    REFUSED = frozenset(
        {"STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "_ASSIGNMENT_LOST"}
    )

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        super().__init__()
        own = (
            {"group.protocol": "consumer"}
            if strategy == "consumer"
            else {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 100}
        )
        self._topic = topic
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **own,
            }
        )

    def _start(self) -> None:
        self.consumer.subscribe([self._topic])

    def _read(self) -> tuple[list[Read], set[TopicPartition]]:
        found: list[Read] = []
        message = self.consumer.poll(POLL_MS / 1000)
        while message is not None and len(found) < 20:
            if message.error() is None:
                found.append(place_of(message))
            message = self.consumer.poll(0)
        if message is not None and message.error() is None:
            found.append(place_of(message))
        return found, {TopicPartition(tp.topic, tp.partition) for tp in self.consumer.assignment()}

    def _commit(self, offsets: dict[TopicPartition, int]) -> bool:
        wanted = [confluent_kafka.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        try:
            done = self.consumer.commit(offsets=wanted, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            if error.args[0].name() not in self.REFUSED:
                raise
            return False
        return all(tp.error is None for tp in done)

    def _stop(self) -> None:
        self.consumer.close()


class KafkaPython(_Threaded):
    """kafka-python: without KIP-848."""

    client = "kafka-python"
    STRATEGIES = {  # noqa: RUF012 - of tests, never changed
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        super().__init__()
        logging.getLogger("kafka").setLevel(logging.ERROR)
        self._arguments = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 100,
            "partition_assignment_strategy": (self.STRATEGIES[strategy],),
        }
        self._topic = topic
        self.consumer: Any = None

    def _start(self) -> None:
        self.consumer = kafka.KafkaConsumer(self._topic, **self._arguments)

    def _read(self) -> tuple[list[Read], set[TopicPartition]]:
        batches = self.consumer.poll(timeout_ms=POLL_MS, max_records=20)
        found = [(r.topic, r.partition, r.offset) for records in batches.values() for r in records]
        return found, {TopicPartition(*tp) for tp in self.consumer.assignment()}

    def _commit(self, offsets: dict[TopicPartition, int]) -> bool:
        wanted = {kafka.TopicPartition(*tp): kafka.OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}
        try:
            self.consumer.commit(wanted)
        except kafka.errors.CommitFailedError:
            return False
        return True

    def _stop(self) -> None:
        self.consumer.close()


class Membership:
    """The members of one group, with the records that they have read and committed."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.everything = {TopicPartition(topic, number) for number in range(partitions)}
        self.members: dict[Member, asyncio.Task[None]] = {}
        self.read: set[Read] = set()
        self.settled: dict[Read, str] = {}  # what was read and then committed, by which client

    async def join(self, member: Member) -> None:
        await member.start()
        self.members[member] = asyncio.create_task(self._poll(member))

    async def leave(self, member: Member) -> None:
        task = self.members.pop(member)
        member.leaving = True
        await task  # after what it is doing: nothing is read and not committed
        await member.stop()

    async def until(self, done: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not done():
                    for task in self.members.values():
                        if task.done():
                            task.result()
                    await asyncio.sleep(POLL_MS / 1000)
        except TimeoutError:
            shares = [(member.client, sorted(tp.partition for tp in member.held())) for member in self.members]
            raise AssertionError(f"not within {WAIT_S} s: {shares}, {len(self.read)} records read") from None

    def shared(self) -> bool:
        """Whether each partition is assigned to one member, and each member has its share."""
        shares = [member.held() for member in self.members]
        sizes = [len(share) for share in shares]
        total = len(self.everything)
        return set().union(*shares) == self.everything and sum(sizes) == total and max(sizes) - min(sizes) <= 1

    async def close(self) -> None:
        for task in self.members.values():
            task.cancel()
        for member in self.members:
            await member.stop()

    async def _poll(self, member: Member) -> None:
        while not member.leaving:
            found = await member.read()
            self._once(member, found, "reads")
            self.read.update(found)
            offsets: dict[TopicPartition, int] = {}
            for topic, partition, offset in found:
                offsets[TopicPartition(topic, partition)] = offset + 1
            if offsets and await member.commit(offsets):
                self._once(member, found, "commits")
                self.settled.update(dict.fromkeys(found, member.client))

    def _once(self, member: Member, found: list[Read], does: str) -> None:
        twice = [each for each in found if each in self.settled]
        assert not twice, f"{member.client} {does} {twice[:3]}, which {self.settled[twice[0]]} has read and committed"
