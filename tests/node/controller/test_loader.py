"""What a node publishes of the metadata log: images with what changed, whatever way it came."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from barnabas.broker.controller.core.features import UnsupportedFeatures
from barnabas.broker.controller.loader import MetadataLoader
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, difference
from barnabas.broker.image.records import (
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_record,
)
from barnabas.broker.image.snapshot import snapshot_records
from barnabas.broker.node.node import Node
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.errors import InvariantViolated
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.work import finished
from tests.support.broker.metadata_images import cluster, with_topic
from tests.support.waiting import until

A, B, C = (bytes(15) + letter for letter in (b"a", b"b", b"c"))


class Published:
    """The loader of a node that is told what was committed by hand."""

    def __init__(self, node: Node) -> None:
        current = CurrentImage()
        self.loader = MetadataLoader(
            node.reactor,
            slices=node.slices,
            quorum=node.quorum,
            current=current,
            controller=node.quorum_controller,
            channel=node.controller,
            heartbeat_now=node.lifecycle.heartbeat_now,
        )
        self.images: list[tuple[MetadataImage, MetadataDelta]] = []
        current.subscribe(lambda _, image, delta: self.images.append((image, delta)))
        self.offset = 0

    def commit(self, *batches: Sequence[MetadataRecord]) -> tuple[MetadataImage, MetadataDelta]:
        data = b""
        for records in batches:
            values = [NewRecord(None, encode_record(record), 5) for record in records]
            data += bytes(build_batch(values, base_offset=self.offset, leader_epoch=3))
            self.offset += len(values)
        self.loader.on_committed(data)
        return self.images[-1]


@pytest.fixture
def published(node: Node) -> Published:
    return Published(node)


def topic(name: str, topic_id: bytes) -> list[MetadataRecord]:
    return [
        TopicRecord(name=name, topic_id=topic_id),
        PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=0),
    ]


async def test_what_is_committed_together_is_published_together(published: Published) -> None:
    image, delta = published.commit(topic("a", A), topic("b", B))
    assert (list(image.topics_by_name), list(delta.created)) == (["a", "b"], [A, B])
    assert (image.offset, image.epoch, image.timestamp_ms) == (3, 3, 5)
    image, delta = published.commit([RemoveTopicRecord(topic_id=A)])
    assert (list(delta.deleted), list(delta.created)) == ([A], [])
    assert len(published.images) == 2


async def test_a_transaction_may_end_much_later(published: Published) -> None:
    image, _ = published.commit([BeginTransactionRecord(name="t"), *topic("a", A)])
    assert (image.topic("a"), image.offset) == (None, 2)
    assert published.loader.in_transaction
    image, delta = published.commit([ConfigRecord(resource_type=4, name="x", value="y"), EndTransactionRecord()])
    assert image.topic("a") is not None
    assert list(delta.created) == [A]
    assert not published.loader.in_transaction


async def test_a_snapshot_replaces_everything_and_its_delta_is_the_difference(published: Published) -> None:
    published.commit(topic("a", A), topic("b", B), [BeginTransactionRecord()])
    target = with_topic(with_topic(cluster((1, 2)), "b", B, ((1,), (1,), 1)), "c", C, ((1, 2), (1, 2), 2))
    published.loader.on_snapshot(SnapshotId(50, 9), [encode_record(each) for each in snapshot_records(target)])
    image, delta = published.images[-1]
    assert (image.offset, image.epoch) == (49, 9)
    assert (list(delta.deleted), list(delta.created)) == ([A], [C])
    assert list(delta.partitions) == [B, C]  # directories of b's replica are named only now
    assert (list(delta.brokers), delta.features) == ([1, 2], True)
    assert not published.loader.in_transaction
    again = finished(difference(image, image))
    assert again.empty


async def test_a_damaged_log_and_features_from_the_future_stop_the_node(published: Published) -> None:
    with pytest.raises(InvariantViolated, match="does not exist"):
        published.commit([RemoveTopicRecord(topic_id=A)])
    with pytest.raises(UnsupportedFeatures):
        published.commit([FeatureLevelRecord(name="transaction.version", feature_level=9)])
    with pytest.raises(InvariantViolated, match="damaged"):
        published.loader.on_snapshot(SnapshotId(1, 1), [b"\x01\x02\x00junk"])
    assert published.loader.image is EMPTY_IMAGE
    assert published.images == []


async def test_a_long_snapshot_is_published_when_all_of_it_is_replayed(published: Published, node: Node) -> None:
    target = cluster()
    for number in range(300):
        target = with_topic(target, f"t{number}", (number + 1).to_bytes(16, "big"), ([1], [1], 1))
    published.loader.on_snapshot(SnapshotId(900, 9), (encode_record(each) for each in snapshot_records(target)))
    assert published.images == []
    await until(lambda: bool(published.images))
    ((image, delta),) = published.images
    assert (len(image.topics_by_name), len(delta.created), image.offset) == (300, 300, 899)
