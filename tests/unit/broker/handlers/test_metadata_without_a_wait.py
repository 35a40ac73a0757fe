"""Metadata waits only where an answer would name a leader that may have died: another broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.api.access import FULL_ACCESS
from barnabas.broker.api.call import Call, Computed, Pending
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.handlers.failover_purgatory import FailoverPurgatory
from barnabas.broker.handlers.metadata import metadata
from barnabas.broker.image.records import PartitionRecord, TopicRecord
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.broker.metadata_images import cluster, replayed

TOPIC_ID = bytes(range(16))


def answer(*leaders: int) -> Any:
    """What broker 1 of three answers about a topic whose partitions have these leaders."""
    partitions = [
        PartitionRecord(
            partition_id=number,
            topic_id=TOPIC_ID,
            replicas=[abs(leader)],
            isr=[abs(leader)],
            leader=leader,
            leader_epoch=1,
            partition_epoch=1,
            directories=[bytes(16)],
        )
        for number, leader in enumerate(leaders)
    ]
    image = replayed(cluster((1, 2, 3)), [TopicRecord(name="t", topic_id=TOPIC_ID), *partitions])
    current: Any = SimpleNamespace(image=image)
    reactor: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 5), call_later=lambda *_: None)
    peers: Any = SimpleNamespace(missing=lambda *_: False)
    config = BrokerConfig({"node.id": "1"})
    needs: Any = SimpleNamespace(
        config=config,
        current_image=current,
        alone=False,
        awaited_leaders=FailoverPurgatory(reactor, config, current, peers),
        listing=SimpleNamespace(live=lambda _listener: [], listed=lambda _listener: []),
        quorum=SimpleNamespace(leader_id=1),
        cluster_id="c",
    )
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    connection: Any = SimpleNamespace(listener_name="PLAINTEXT", access=FULL_ACCESS)
    found = metadata(needs, Call(request, 12, 3, "client", connection, "127.0.0.1"))
    return found.compute() if isinstance(found, Computed) else found


@pytest.mark.parametrize("leaders", [(1,), (-1,), (1, -1, 1)])
def test_an_answer_that_names_only_this_broker_does_not_wait(leaders: tuple[int, ...]) -> None:
    response = answer(*leaders)
    assert isinstance(response, MetadataResponse)
    assert len(response.topics[0].partitions) == len(leaders)


def test_an_answer_that_names_another_broker_waits() -> None:
    assert isinstance(answer(1, 2), Pending)
