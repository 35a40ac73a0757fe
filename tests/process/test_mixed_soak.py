"""Mixed load on one broker: memory, descriptors and disk are at the end what they were after a sixth of the time.

At once: a producer, a transactional copy, groups of both protocols whose members come and go, topics that come and go, admin calls.
`BARNABAS_SOAK_MINUTES` (30) says how long.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Producer
from barnabas.client.exactly_once import CopyProgress, NewMessage, exactly_once
from barnabas.client.types import Record
from barnabas.testing import Broker
from tests.support.processes.fixtures import Serve
from tests.support.processes.fuzzing import descriptors
from tests.support.processes.process_tree import rss_bytes

pytestmark = [pytest.mark.process, pytest.mark.soak]

MINUTES = float(os.environ.get("BARNABAS_SOAK_MINUTES", "30"))
MIB = 1024 * 1024
RSS_GROWTH_MAX = 48 * MIB
DESCRIPTORS_GROWTH_MAX = 30  # connections and files of topics that are there by chance at either look
DISK_GROWTH_MAX = 96 * MIB  # a segment more or less of each partition
RECORDS_PER_SECOND = 400
# Everything old goes within seconds, so that what is left after five minutes is what is never removed.
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "auto.create.topics.enable=false",
    "log.segment.bytes=1048576",
    "log.retention.bytes=4194304",
    "log.retention.check.interval.ms=2000",
    "log.segment.delete.delay.ms=1000",
    "log.cleaner.backoff.ms=1000",
    "log.cleaner.min.cleanable.ratio=0.1",
    "offsets.topic.num.partitions=4",
    "offsets.topic.segment.bytes=1048576",
    "transaction.state.log.num.partitions=4",
    "transaction.state.log.segment.bytes=1048576",
    "metadata.log.segment.bytes=8388608",
    "metadata.log.max.record.bytes.between.snapshots=1048576",
    "metadata.max.retention.bytes=16777216",
)


class Load:
    """The parts of the load, each going on until `over`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.done: Counter[str] = Counter()
        self.over = False

    async def produce(self) -> None:
        async with Producer(bootstrap_servers=self.broker.bootstrap_servers, linger_ms=5) as producer:
            for number in itertools.count():
                if self.over:
                    return
                sent = [
                    await producer.send("load", b"%d " % number + b"x" * 200) for _ in range(RECORDS_PER_SECOND // 10)
                ]
                await asyncio.gather(*sent)
                self.done["produced"] += len(sent)
                await asyncio.sleep(0.1)

    async def copy(self) -> None:
        consumer = Consumer(
            "load",
            bootstrap_servers=self.broker.bootstrap_servers,
            group_id="copy",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        producer = Producer(bootstrap_servers=self.broker.bootstrap_servers, transactional_id="copy")

        def transform(record: Record[Any, Any]) -> list[NewMessage]:
            return [NewMessage("copied", record.value)]

        async def is_over(progress: CopyProgress) -> bool:
            self.done["copied"], self.done["transactions"] = progress.records_out, progress.committed
            return self.over

        async with consumer, producer:
            await exactly_once(consumer, producer, transform, on_transaction=is_over)

    async def members(self, protocol: str) -> None:
        """Two members at a time of one group: one stays for a while, one comes and goes."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.broker.bootstrap_servers,
            "group_id": f"churn-{protocol}",
            "group_protocol": protocol,
        }
        while not self.over:
            async with Consumer("copied", auto_offset_reset="earliest", **settings) as stays:
                for _ in range(20):
                    async with Consumer("copied", auto_offset_reset="earliest", **settings) as comes:
                        for each in (comes, stays, comes, stays):
                            polled = await each.getmany(timeout_ms=200, max_records=1_000)
                            self.done["consumed"] += sum(map(len, polled.values()))
                    self.done[f"{protocol} members"] += 1
                    if self.over:
                        return

    async def topics(self) -> None:
        async with (
            Admin(bootstrap_servers=self.broker.bootstrap_servers) as admin,
            Producer(bootstrap_servers=self.broker.bootstrap_servers) as producer,
        ):
            for number in itertools.count():
                if self.over:
                    return
                name = f"passing-{number % 10}"
                await admin.create_topics([NewTopic(name, 3)])
                for partition in range(3):
                    await producer.send_and_wait(name, b"x" * 10_000, partition=partition)
                await admin.delete_topics([name])
                self.done["topics"] += 1
                await asyncio.sleep(0.2)

    async def ask(self) -> None:
        async with Admin(bootstrap_servers=self.broker.bootstrap_servers) as admin:
            while not self.over:
                await admin.describe_cluster()
                await admin.describe_log_dirs()
                for group in await admin.list_groups():
                    await admin.describe_group(group.group_id)
                    await admin.group_lag(group.group_id)
                    self.done["admin calls"] += 2
                await admin.list_transactions()
                await admin.list_topics()
                self.done["admin calls"] += 5
                await asyncio.sleep(0.2)


async def run(broker: Broker) -> tuple[dict[str, int], dict[str, int], Counter[str]]:
    """Figures after a sixth of the time and at its end, and what was done."""
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic("load", 2), NewTopic("copied", 2)])
    load = Load(broker)
    parts: list[Callable[[], Awaitable[None]]] = [
        load.produce,
        load.copy,
        lambda: load.members("classic"),
        lambda: load.members("consumer"),
        load.topics,
        load.ask,
    ]

    async def look(seconds: float) -> dict[str, int]:
        """The least of several looks: files and buffers come and go."""
        looks = []
        for _ in range(10):
            await asyncio.sleep(seconds / 10)
            looks.append(
                {
                    "rss": rss_bytes(broker),
                    "descriptors": descriptors(broker),
                    "disk": disk_bytes(broker.broker(1).directory),
                }
            )
        return {key: min(each[key] for each in looks) for key in looks[0]}

    async def watch() -> tuple[dict[str, int], dict[str, int]]:
        try:
            seconds = MINUTES * 60
            await asyncio.sleep(seconds * 0.12)
            before = await look(seconds * 0.05)
            await asyncio.sleep(seconds * 0.78)
            return before, await look(seconds * 0.05)
        finally:
            load.over = True

    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part())  # type: ignore[arg-type]  # coroutine functions, all of them
        watching = tasks.create_task(watch())
    return *watching.result(), load.done


def disk_bytes(folder: Path) -> int:
    """What the files of a folder hold; those that go while they are counted hold nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(f"{path}/{name}").st_blocks * 512
            except FileNotFoundError:
                pass
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_grows_under_mixed_load(serve: Serve) -> None:
    broker = serve(*SETTINGS)
    began = time.monotonic()
    before, after, done = asyncio.run(run(broker))
    figures = {"minutes": round((time.monotonic() - began) / 60, 1), "before": before, "after": after, "done": done}
    sys.stdout.write(json.dumps(figures) + "\n")
    assert min(done[what] for what in ("produced", "copied", "classic members", "consumer members", "topics")) > 0
    assert after["rss"] - before["rss"] < RSS_GROWTH_MAX
    assert after["descriptors"] - before["descriptors"] < DESCRIPTORS_GROWTH_MAX
    assert after["disk"] - before["disk"] < DISK_GROWTH_MAX
