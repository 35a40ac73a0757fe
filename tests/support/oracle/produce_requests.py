"""Produce requests with hand-made batches, sent to Kafka and to Barnabas."""

from __future__ import annotations

import struct
import time
from typing import Any

import crc32c

from barnabas.protocol import registry
from barnabas.protocol.messages.produce import (
    ProduceResponse,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.protocol.schema import decode
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.requests import request_of

BASE_MS = int(time.time() * 1000) - 100_000
Outcome = tuple[Any, ...]


def batch(*values: bytes | None, at_ms: int = 0, keys: bool = False, **fields: Any) -> bytearray:
    records = [NewRecord(b"k" if keys else None, value, BASE_MS + at_ms + n) for n, value in enumerate(values)]
    return build_batch(records, **fields)


def patched(records: bytearray, at: int, layout: str, value: int, *, seal: bool = True) -> bytearray:
    struct.pack_into(layout, records, at, value)
    if seal:
        struct.pack_into(">I", records, 17, crc32c.crc32c(bytes(records[21:])))
    return records


def produce(wire: Wire, topic: str, records: bytes | bytearray | None, version: int = 9, **fields: Any) -> Outcome:
    """(code, base offset, append time known, log start, records blamed) or how the connection ended."""
    data = {
        "name": topic,
        "topic_id": fields.pop("topic_id", bytes(16)),
        "partition_data": [{"index": fields.pop("partition", 0), "records": records}],
    }
    request = request_of("Produce", acks=fields.pop("acks", -1), timeout_ms=5_000, topic_data=[data], **fields)
    with Wire(wire.bootstrap) as own:
        try:
            correlation = own.send(request, version)
            after = own.send(
                request_of("Metadata", topics=[]), 5
            )  # answers are in order: if this one comes first, the broker was silent
            frame = own.next_frame()
        except ConnectionError:
            return ("closed",)
    if frame.startswith(struct.pack(">i", after)):
        return ("silent",)
    assert frame.startswith(struct.pack(">i", correlation))
    at = 5 if registry.response_header_version(request.API_KEY, version) else 4
    answer = decode(ProduceResponse, frame, version, at).responses[0].partition_responses[0]
    return (
        answer.error_code,
        answer.base_offset,
        answer.log_append_time_ms >= 0,
        answer.log_start_offset,
        [one.batch_index for one in answer.record_errors],
    )


def put(wire: Wire, topic: str, partition: int, values: list[bytes], at_ms: int = 0) -> None:
    """Appends, however long the partition takes to be there."""
    for _ in attempts(f"{topic} has a leader"):
        if not wire.produce(9, topic, partition, values, timestamp=BASE_MS + at_ms).error_code:
            return
