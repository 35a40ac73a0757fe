"""Decoder of fetched batches: checks, decodes, deserializes, and creates errors for unreadable batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from barnabas.client.consumer.core.fetch_state import Fetched, PartitionState
from barnabas.client.consumer.core.read_committed import is_delivered
from barnabas.client.errors import CorruptRecords, KafkaError
from barnabas.client.types import RawRecord, Record, TopicPartition, ValueRun
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.records import BatchHeader, decode_records, read_header

RUN_RECORDS_MIN: Final = 16  # a smaller batch is not worth a ValueRun

Deserializer = Callable[[Any], Any]
Deserializers = tuple[Deserializer | None, Deserializer | None]  # of keys and of values


def decoded(
    tp: TopicPartition,
    fetched: Fetched,
    header: BatchHeader,
    *,
    check_crcs: bool,
    raw: bool = False,
    runs: bool = False,
) -> list[Record[Any, Any]]:
    """The records of the next batch; none for a control batch (but `raw`) or an aborted transaction.

    With `raw` they are RawRecords, with `runs` perhaps one ValueRun. Raises RemoteProtocolError.
    """
    delivered = is_delivered(fetched.records, fetched.position, header, fetched.aborted, check_crcs=check_crcs)
    if not delivered and not (raw and header.is_control):
        return []
    tail = (*tp, header.timestamp_type, header.leader_epoch)
    found: list[Record[Any, Any]]
    if raw:
        more = (header.producer_id, header.producer_epoch, header.is_transactional, header.is_control)
        found = decode_records(fetched.records, fetched.position, header, cls=RawRecord, tail=(*tail, *more))
    else:
        runs = runs and header.last_offset_delta + 1 == header.record_count >= RUN_RECORDS_MIN
        of_values = partial(_one_run, tp, header.base_offset) if runs else None
        found = decode_records(fetched.records, fetched.position, header, cls=Record, tail=tail, of_values=of_values)
    return found


def _one_run(tp: TopicPartition, offset: int, values: list[bytes]) -> list[Any]:
    return [ValueRun(offset, values, *tp)]


def from_offset(records: list[Any], offset: int) -> list[Any]:
    out: list[Any] = []
    for record in records:
        if isinstance(record, ValueRun):
            out += [run for run in [record.part(offset, None)] if run.values]
        elif record.offset >= offset:
            out.append(record)
    return out


def record_count(records: list[Any]) -> int:
    first = records[0]
    return len(first.values) if isinstance(first, ValueRun) else len(records)


def deserialized(
    records: list[Record[Any, Any]], deserializers: Deserializers
) -> tuple[list[Record[Any, Any]], int | None]:
    """The records before a deserializer's first failure, and its offset (or None). Raises KafkaError."""
    key_of, value_of = deserializers
    out: list[Record[Any, Any]] = []
    for record in records:
        key, value = record.key, record.value
        try:
            if key_of is not None and key is not None:
                key = key_of(key)
            if value_of is not None and value is not None:
                value = value_of(value)
        except Exception as error:
            if out:
                return out, record.offset
            raise KafkaError(
                f"a deserializer raised {error!r} at offset {record.offset}; seek past it to continue",
                topic=record.topic,
                partition=record.partition,
            ) from error
        out.append(record._replace(key=key, value=value))
    return out, None


def corrupt(state: PartitionState, error: RemoteProtocolError) -> CorruptRecords:
    """The error for a partition's unreadable next batch, with the next offset if that is plausible."""
    position = state.position or 0
    fetched = state.buffered[0]
    after_batch = position + 1
    try:
        header = read_header(fetched.records, fetched.position)
        if position < header.next_offset <= max(state.high_watermark, position + 1):
            after_batch = header.next_offset
        after = fetched.position + header.size_bytes
        if fetched.end - after >= HEADER_SIZE:
            base_offset = read_header(fetched.records, after).base_offset
            after_batch = base_offset if base_offset > position else after_batch
    except RemoteProtocolError:
        pass
    return CorruptRecords(state.tp, position, str(error), next_offset=after_batch)
