"""Fetch requests of tests, and the parts of their answers."""

from __future__ import annotations

from typing import Any

from barnabas.protocol.records import iter_batches
from tests.support.requests import Fields, request_of

BIG = 1 << 24


def wanted(partition: int, offset: int = 0, max_bytes: int = BIG, **fields: Any) -> Fields:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes, **fields}


def request(*partitions: Fields, topic: str = "t", topic_id: bytes = bytes(16), **fields: Any) -> Any:
    defaults: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": BIG}
    topics = [{"topic": topic, "topic_id": topic_id, "partitions": list(partitions)}] if partitions else []
    return request_of("Fetch", topics=topics, **(defaults | fields))


def parts(response: Any) -> list[Any]:
    return [part for topic in response.responses for part in topic.partitions]


def offsets(part: Any) -> list[int]:
    return [header.base_offset for _, header in iter_batches(part.records or b"")]


def follower(*partitions: Fields, broker_id: int = 2, **fields: Any) -> Any:
    state = {"replica_id": broker_id, "replica_epoch": 7}
    return request(*partitions, topic="", replica_state=state, **fields)
