"""Produce requests of tests."""

from __future__ import annotations

from typing import Any

from tests.support.broker.nodes import Peer
from tests.support.requests import request_of


def request(records: bytes | None, *, topic: str = "t", acks: int = -1, **fields: Any) -> Any:
    data = {
        "name": topic,
        "topic_id": fields.pop("topic_id", bytes(16)),
        "partition_data": [{"index": fields.pop("partition", 0), "records": records}],
    }
    return request_of("Produce", acks=acks, timeout_ms=fields.pop("timeout_ms", 5_000), topic_data=[data], **fields)


async def produce(peer: Peer, version: int, sent: Any) -> Any:
    return (await peer.call(sent, version)).responses[0].partition_responses[0]
