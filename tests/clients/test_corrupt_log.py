"""A batch that rots on a broker's disk: the bundled client names it, reads on behind it, and hangs nowhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.client.consumer.ranges import RangeReader
from barnabas.client.errors import CorruptRecords
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from tests.support.processes.fixtures import Serve

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]

TP = TopicPartition("t", 0)


def rot(folder: Path) -> None:
    """Changes bytes of the second record where it lies on the disk."""
    (log,) = folder.rglob("t-0/*0.log")
    log.write_bytes(log.read_bytes().replace(b"value-1", b"rotten!"))


async def test_a_rotten_batch_is_named_and_passed_by_a_seek(serve: Serve) -> None:
    broker = serve()
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(3):  # each in a batch of its own
            await producer.send_and_wait("t", b"value-%d" % number)
    broker.stop_broker()
    rot(broker.broker(1).directory)
    broker.restart()
    async with asyncio.timeout(60):
        async with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            assert (await consumer.getone()).value == b"value-0"
            for _ in range(2):
                with pytest.raises(CorruptRecords, match=r"seek past it to continue, to offset 2: .*checksum") as told:
                    await consumer.getone()
            assert (told.value.topic, told.value.partition, told.value.offset) == ("t", 0, 1)
            assert told.value.next_offset is not None
            consumer.seek(TP, told.value.next_offset)
            assert (await consumer.getone()).value == b"value-2"
        cluster = NetworkClient(ConnectionConfig(bootstrap_servers=broker.bootstrap_servers))
        await cluster.start()
        try:
            reader = RangeReader(cluster, TP, 0, 3)
            chunk = await reader.next()
            assert chunk is not None
            assert chunk.next_offset == reader.position == 1
            for _ in range(2):
                with pytest.raises(CorruptRecords, match=r"after offset 1 cannot be read.*checksum") as told:
                    await reader.next()
                assert (told.value.topic, told.value.partition) == ("t", 0)
        finally:
            await cluster.close()
