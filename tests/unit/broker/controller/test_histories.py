"""Random lives of a cluster: whatever is decided, the image keeps its invariants and a snapshot says all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.broker.controller.core.configs import ConfigOperation, incremental_alter_configs
from barnabas.broker.controller.core.isr import alter_partition
from barnabas.broker.controller.core.reassignments import alter_reassignments
from barnabas.broker.controller.core.registration import fence_broker, shut_down_broker, unfence_broker
from barnabas.broker.controller.core.topics import create_partitions, create_topics, delete_topics
from barnabas.broker.image.assignment import Assignment
from barnabas.broker.image.image import EMPTY_IMAGE, NO_LEADER, MetadataImage
from barnabas.broker.image.records import MetadataRecord, ProducerIdsRecord, decode_record, encode_record
from barnabas.broker.image.replay import ImageBuilder
from barnabas.broker.image.snapshot import snapshot_records
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.support.broker.metadata_images import cluster, ids, register, replayed, view

BROKERS = (1, 2, 3)
names = st.sampled_from(["a", "b", "a.b", "a_b", ""])
brokers = st.sampled_from(BROKERS)
step = st.one_of(
    st.tuples(st.just("create"), names, st.integers(-1, 4), st.integers(-1, 4)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("widen"), names, st.integers(0, 6)),
    st.tuples(
        st.just("alter"),
        names,
        st.sampled_from(["min.insync.replicas", "cleanup.policy", "retention.ms"]),
        st.sampled_from(["1", "2", "3", "compact"]),
        st.sampled_from(list(ConfigOperation)),
    ),
    st.tuples(st.just("move"), names, st.none() | st.lists(brokers, max_size=3)),
    st.tuples(st.just("catch up"), names, st.lists(brokers, unique=True, max_size=3)),
    st.tuples(st.just("allocate"), st.integers(1, 3)),
    st.tuples(st.just("fence"), brokers),
    st.tuples(st.just("unfence"), brokers),
    st.tuples(st.just("shut down"), brokers),
    st.tuples(st.just("register"), brokers, st.booleans()),
)


def check(image: MetadataImage) -> None:
    assert list(image.topics_by_id) == [topic.topic_id for topic in image.topics_by_name.values()]
    alive = {broker.broker_id for broker in image.alive_brokers()}
    for topic, number, partition in image.partitions():
        where = (topic.name, number, partition)
        assert len(set(partition.replicas)) == len(partition.replicas) == len(partition.directories), where
        assert set(partition.isr) <= set(partition.replicas), where
        held = Assignment.of(partition)
        assert not set(held.adding) & set(held.removing), where
        assert {*held.adding, *held.removing} <= set(held.replicas), where
        assert held.completed(partition.isr) is None, where
        assert set(partition.eligible_leader_replicas) <= set(partition.replicas), where
        assert not set(partition.isr) & set(partition.eligible_leader_replicas), where
        enough = image.min_insync_replicas(topic.name, len(partition.replicas), 1)
        assert not partition.eligible_leader_replicas or len(partition.isr) < enough, where
        if partition.leader == NO_LEADER:
            # Whoever holds everything and may lead does.
            assert not (set(partition.isr) | set(partition.eligible_leader_replicas)) & alive, where
        else:
            assert partition.leader in partition.isr, where
            assert partition.leader in alive, where


def caught_up(image: MetadataImage, name: str, isr: list[int]) -> Sequence[MetadataRecord]:
    """What is written where the leader of the topic's first partition wants this ISR."""
    topic = image.topic(name)
    if topic is None or topic.partitions[0].leader == NO_LEADER:
        return []
    partition = topic.partitions[0]
    wanted = AlterPartitionRequestPartition(
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=-1) for each in isr],
    )
    request = AlterPartitionRequest(
        broker_id=partition.leader,
        broker_epoch=image.brokers[partition.leader].epoch,
        topics=[AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[wanted])],
    )
    return alter_partition(view(image), request).records


@settings(max_examples=150)
@example([("create", "a", 1, 1), *((kind, broker) for kind in ("shut down", "fence", "unfence") for broker in BROKERS)])
@given(st.lists(step, max_size=25))
def test_random_lives(steps: list[tuple]) -> None:  # type: ignore[type-arg]  # of different shapes
    image = cluster(BROKERS)
    new_id = ids()
    for kind, *rest in steps:
        before = image
        now = view(image, new_id=new_id)
        if kind == "create":
            topic = CreatableTopic(name=rest[0], num_partitions=rest[1], replication_factor=rest[2])
            records = create_topics(now, CreateTopicsRequest(topics=[topic])).records
        elif kind == "delete":
            records = delete_topics(now, [DeleteTopicState(name=rest[0])]).records
        elif kind == "widen":
            wanted = CreatePartitionsTopic(name=rest[0], count=rest[1], assignments=None)
            records = create_partitions(now, CreatePartitionsRequest(topics=[wanted])).records
        elif kind == "alter":
            config = AlterableConfig(name=rest[1], value=rest[2], config_operation=rest[3])
            resource = AlterConfigsResource(resource_type=2, resource_name=rest[0], configs=[config])
            records = incremental_alter_configs(now, IncrementalAlterConfigsRequest(resources=[resource])).records
        elif kind == "move":
            partition = ReassignablePartition(partition_index=0, replicas=rest[1])
            moved = ReassignableTopic(name=rest[0], partitions=[partition])
            records = alter_reassignments(now, AlterPartitionReassignmentsRequest(topics=[moved])).records
        elif kind == "catch up":
            records = caught_up(image, rest[0], rest[1])
        elif kind == "allocate":
            records = [ProducerIdsRecord(next_producer_id=image.next_producer_id + rest[0])]
        elif kind == "fence":
            records = fence_broker(now, rest[0])
        elif kind == "unfence":
            records = unfence_broker(now, rest[0])
        elif kind == "shut down":
            records = shut_down_broker(now, rest[0])
        else:
            previous = image.brokers[rest[0]].epoch if rest[1] else -1
            image = register(image, rest[0], previous=previous, unfence=False)
            records = []
        image = replayed(image, [decode_record(encode_record(record)) for record in records])
        check(image)
        for topic_before, number, partition_before in before.partitions():
            after = image.topic_by_id(topic_before.topic_id)
            if after is not None:  # epochs never go back
                assert after.partitions[number].leader_epoch >= partition_before.leader_epoch
                assert after.partitions[number].partition_epoch >= partition_before.partition_epoch
    builder = ImageBuilder(EMPTY_IMAGE, of_snapshot=True)
    for record in snapshot_records(image):
        builder.replay(decode_record(encode_record(record)))
    builder.advance(image.offset, image.epoch, image.timestamp_ms)
    topics = [
        topic if topic.first_producer_id else topic._replace(first_producer_id=image.next_producer_id)
        for topic in image.topics_by_name.values()
    ]
    assert builder.image() == replace(
        image,
        topics_by_name={topic.name: topic for topic in topics},
        topics_by_id={topic.topic_id: topic for topic in topics},
    )
