"""`barnabas consume TOPIC`: prints a topic's records on standard output."""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked
from barnabas.client.errors import UnknownTopicOrPartition
from barnabas.client.types import Record, TopicPartition
from barnabas.errors import ErrorCode

__all__ = ["consume"]


def consume(
    topic: Annotated[str, Parameter(help="Which topic.")],
    *,
    from_beginning: Annotated[
        bool, Parameter(negative=(), help="Begin at the first record [default: at new records].")
    ] = False,
    group: Annotated[str | None, Parameter(help="Consume as a member of this group and commit its offsets.")] = None,
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed"],
        Parameter(help="read_committed leaves out open and aborted transactions."),
    ] = "read_committed",
    format_: Annotated[
        Literal["value", "json"], Parameter(name="--format", help="Print values only, or a JSON object per record.")
    ] = "value",
    max_records: Annotated[int | None, Parameter(help="Stop after this many records.")] = None,
    exit_at_end: Annotated[bool, Parameter(negative=(), help="Stop at the present end of the topic.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Print a topic's records."""

    async def work() -> None:
        consumer = connection.consumer(
            group_id=group,
            isolation_level=isolation,
            auto_offset_reset="earliest" if from_beginning else "latest",
        )
        async with consumer:
            partitions = sorted(TopicPartition(topic, p) for p in await consumer.partitions_for_topic(topic))
            if not partitions:
                raise UnknownTopicOrPartition(
                    "there is no such topic", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=topic
                )
            if group is None:
                consumer.assign(partitions)
            else:
                consumer.subscribe([topic])
            ends = await consumer.end_offsets(partitions) if exit_at_end else {}
            left = sys.maxsize if max_records is None else max_records
            while left > 0:
                for records in (await consumer.getmany(timeout_ms=250, max_records=min(left, 1000))).values():
                    left -= len(records)
                    for record in records:
                        _print(record, format_)
                sys.stdout.flush()
                mine = sorted(consumer.assignment())
                if exit_at_end and mine and all([await consumer.position(tp) >= ends[tp] for tp in mine]):
                    return

    return worked("consume", connection, work())


def _print(record: Record[bytes | None, bytes | None], format_: str) -> None:
    if format_ == "value":
        sys.stdout.buffer.write((record.value or b"") + b"\n")
        return
    shown: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _readable(record.key),
        "value": _readable(record.value),
    }
    if record.headers:
        shown["headers"] = [[name, _readable(value)] for name, value in record.headers]
    sys.stdout.buffer.write(json.dumps(shown, ensure_ascii=False).encode() + b"\n")


def _readable(data: bytes | None) -> str | dict[str, str] | None:
    """Decodes UTF-8 to text; returns other bytes as an object with their base64 form."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
