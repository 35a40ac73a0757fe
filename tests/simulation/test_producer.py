"""The idempotent producer in bursts, many small batches in flight, while its broker and links break: each record once, in order."""

from __future__ import annotations

import asyncio
import os

import pytest

from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.chaos import Chaos
from tests.support.simulation.workload import BOOTSTRAP, Broker

pytestmark = pytest.mark.simulation

SEEDS = range(*map(int, os.environ.get("BARNABAS_SEEDS", "0:10").split(":")))
PARTITIONS = 2
RECORDS = 2_000


async def burst(ports: Ports, offsets: dict[bytes, int]) -> None:
    """Sends in bursts without waiting for acknowledgements, and writes down where each record went."""
    async with Producer(
        bootstrap_servers=BOOTSTRAP,
        max_batch_size=300,
        request_timeout_ms=5_000,
        delivery_timeout_ms=600_000,
        clock=ports.clock,
        rng=ports.rng,
        network=ports.network,
    ) as producer:
        sent = []
        for i in range(RECORDS):
            value = b"%06d" % i
            sent.append((value, await producer.send("burst", value, partition=i % PARTITIONS)))
            if ports.rng.randrange(40) == 0:
                await asyncio.sleep(ports.rng.random() * 3)
        await producer.flush()
        for value, future in sent:
            offsets[value] = future.result().offset


async def read(ports: Ports, found: dict[int, list[tuple[int, bytes]]]) -> None:
    async with Consumer(
        bootstrap_servers=BOOTSTRAP,
        auto_offset_reset="earliest",
        clock=ports.clock,
        rng=ports.rng,
        network=ports.network,
    ) as consumer:
        partitions = [TopicPartition("burst", p) for p in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        for tp in partitions:
            while await consumer.position(tp) < ends[tp]:
                for at, records in (await consumer.getmany(timeout_ms=500)).items():
                    found.setdefault(at.partition, []).extend((r.offset, r.value or b"") for r in records)


async def scene(world: World, offsets: dict[bytes, int], found: dict[int, list[tuple[int, bytes]]]) -> None:
    broker = Broker(**{"num.partitions": str(PARTITIONS)})
    world.machine("broker").start(broker)
    sending = world.machine("feeder").start(lambda ports: burst(ports, offsets))
    chaos = Chaos(world, broker, lambda ports: asyncio.sleep(0), power=False)
    chaos.faults = [
        chaos.kill_broker,
        chaos.stop_broker,
        chaos.cut_link,
        chaos.reset_link,
        chaos.crash_at_delivery,
        chaos.crash_at_disk_change,
    ]
    chaos._client = lambda: "feeder"  # type: ignore[method-assign]  # the one client there is
    await chaos.run(12)
    await sending
    await world.machine("reader").start(lambda ports: read(ports, found))


@pytest.mark.parametrize("first", SEEDS[::5])
def test_bursts_through_faults(first: int) -> None:
    for seed in range(first, min(first + 5, SEEDS.stop)):
        offsets: dict[bytes, int] = {}
        found: dict[int, list[tuple[int, bytes]]] = {}
        with World(seed) as world:
            world.run(scene(world, offsets, found), time_limit_s=3600)
        for partition in range(PARTITIONS):
            expected = [b"%06d" % i for i in range(RECORDS) if i % PARTITIONS == partition]
            assert [value for _, value in found[partition]] == expected, f"seed {seed}"
            # An offset is unknown (−1) where a retry found the record written long before; never wrong.
            assert all(offsets[value] in (offset, -1) for offset, value in found[partition]), f"seed {seed}"
