"""Produce requests of tests."""

from __future__ import annotations

from typing import Any

from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.broker.nodes import Peer


def request(records: bytes | None, *, topic: str = "t", acks: int = -1, **fields: Any) -> ProduceRequest:
    data = TopicProduceData(
        name=topic,
        topic_id=fields.pop("topic_id", bytes(16)),
        partition_data=[PartitionProduceData(index=fields.pop("partition", 0), records=records)],
    )
    return ProduceRequest(acks=acks, timeout_ms=fields.pop("timeout_ms", 5_000), topic_data=[data], **fields)


async def produce(peer: Peer, version: int, sent: ProduceRequest) -> Any:
    return (await peer.call(sent, version)).responses[0].partition_responses[0]
