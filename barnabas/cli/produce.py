"""`barnabas produce TOPIC`: writes the lines of standard input as records."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

from cyclopts import Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked
from barnabas.client import Producer
from barnabas.client.types import CompressionType, RecordMetadata

__all__ = ["produce"]


def produce(
    topic: Annotated[str, Parameter(help="Name of the topic; created if the broker creates topics automatically.")],
    *,
    key_separator: Annotated[str | None, Parameter(help="The text before it in each line is the record's key.")] = None,
    partition: Annotated[int | None, Parameter(help="Write all records to this partition.")] = None,
    compression: Annotated[CompressionType | None, Parameter(help="gzip, snappy, lz4 or zstd.")] = None,
    transactional_id: Annotated[str | None, Parameter(help="Write all lines in one transaction: all or none.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Write lines of standard input to a topic."""

    async def work() -> None:
        producer = connection.producer(compression_type=compression, transactional_id=transactional_id, linger_ms=5)
        sent: list[asyncio.Future[RecordMetadata]] = []
        async with producer:
            if transactional_id is None:
                await _send_lines(producer, topic, key_separator, partition, sent)
                await producer.flush()
            else:
                async with producer.transaction():
                    await _send_lines(producer, topic, key_separator, partition, sent)
            for future in sent:
                await future
        print(f"wrote {len(sent)} records to {topic}", file=sys.stderr)

    return worked("produce", connection, work())


async def _send_lines(
    producer: Producer,
    topic: str,
    key_separator: str | None,
    partition: int | None,
    sent: list[asyncio.Future[RecordMetadata]],
) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        key, value = None, line.rstrip(b"\r\n")
        if key_separator:
            before, separator, after = value.partition(key_separator.encode())
            key, value = (before, after) if separator else (None, value)
        sent.append(await producer.send(topic, value, key=key, partition=partition))
