"""A consumer group of two topics under the core of the group coordinator."""

from __future__ import annotations

from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.image.image import MetadataImage, PartitionImage, TopicImage
from tests.support.bench.group import Client, GroupBench

PARTITION = PartitionImage(1, 0, 0, (1,), (1,), (bytes(16),))


def image(**topics: int) -> MetadataImage:
    """Metadata with topics of so many partitions; the id of a topic is its name, filled up."""
    found = {
        name: TopicImage(name, name.encode().ljust(16, b"."), (PARTITION,) * count) for name, count in topics.items()
    }
    return MetadataImage(
        offset=sum(topics.values()), topics_by_name=found, topics_by_id={t.topic_id: t for t in found.values()}
    )


def group(bench: GroupBench) -> ConsumerGroup:
    return bench.shard.tables.consumer["g"]


def settle(*clients: Client) -> None:
    """Heartbeats until nobody learns anything new."""
    for _ in range(10):
        for client in clients:
            client.beat()
