"""A catalogue of huge requests, hostile and legitimate ones: at least one for every API that has a list or bytes in its request.

Each entry builds one request from the message declarations, as large as decoders take: 99,000 elements, or frames of nearly 8 MiB.
`World` prepares one broker for them: a topic of many partitions, a group with many offsets, a transaction.

Used by `test_stalls.py`, which watches the turns of the broker's loop, and by `bench/stalls.py`, which measures pauses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import crc32c

from barnabas.protocol import registry
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.compression import compress
from barnabas.protocol.messages import (
    admin,
    cluster,
    consumer_groups,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    quorum,
    reassignments,
    transactions,
)
from barnabas.protocol.primitives import encode_varint
from barnabas.protocol.records import NewRecord, build_batch
from barnabas.protocol.wire import Array, Blob, RecordsView
from tests.oracle.wire import Wire

ELEMENTS: Final = 99_000  # just below what a decoder takes from a stranger
LARGE_BYTES: Final = 7_900_000  # just below the largest frame of an API other than Produce
CLOSED: Final = -1_000  # in place of an error code: the broker closed the connection
WIDE: Final = "wide"
GROUP: Final = "huge-group"
RECORD: Final = b"\x0c\0\0\0\x01\x01\0"  # the first of a batch, without key and value
TRANSACTION: Final = "huge-transaction"


@dataclass(slots=True)
class World:
    """What the requests refer to.

    partitions: of the topic WIDE.
    topics: how many topics legitimate requests create and delete.
    """

    partitions: int
    topics: int
    wide_id: bytes = bytes(16)
    producer_id: int = -1
    producer_epoch: int = -1

    def prepare(self, wire: Wire) -> None:
        """Creates the wide topic, a group with an offset for each of its partitions, and a transactional producer."""
        created = wire.call(
            admin.CreateTopicsRequest(
                topics=[admin.CreatableTopic(name=WIDE, num_partitions=self.partitions, replication_factor=1)],
                timeout_ms=60_000,
            ),
            7,
        ).topics[0]
        assert created.error_code == 0, created
        self.wide_id = created.topic_id
        wire.find_coordinator(GROUP, 0)
        wire.find_coordinator(TRANSACTION, 1)
        answer = wire.call(commit_of(self.partitions), 8)
        assert codes_in(answer) == {0}, codes_in(answer)
        identity = wire.call(
            transactions.InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=600_000), 4
        )
        assert identity.error_code == 0
        self.producer_id, self.producer_epoch = identity.producer_id, identity.producer_epoch


@dataclass(frozen=True, slots=True)
class Huge:
    """One request of the catalogue.

    codes: every error code that may stand in its answer, CLOSED for a closed connection.
    listener: "broker" or "controller".
    """

    name: str
    request: Callable[[World], Any]
    version: int
    codes: frozenset[int]
    listener: str = "broker"


def codes_in(answer: Any) -> set[int]:
    """All error codes of an answer, at any depth."""
    found: set[int] = set()
    stack = [answer]
    while stack:
        item = stack.pop()
        for declared in item.FIELDS:
            value = getattr(item, declared.name)
            if declared.name in ("error_code", "partition_error_code"):
                found.add(value)
            elif isinstance(value, list):
                if value and hasattr(value[0], "FIELDS"):
                    stack.extend(value)
            elif hasattr(value, "FIELDS"):
                stack.append(value)
    return found


def has_list_or_bytes(declared: Any) -> bool:
    """Whether a message has an array or bytes in it, at any depth."""
    for each in declared.FIELDS:
        if isinstance(each.wire, Array | Blob | RecordsView):
            return True
        if isinstance(each.wire, type) and has_list_or_bytes(each.wire):
            return True
    return False


def apis_with_lists() -> Iterator[registry.Api]:
    """The APIs of which the catalogue must have a request."""
    return (api for api in registry.API.values() if has_list_or_bytes(api.request))


def names(count: int, stem: str = "n") -> list[str]:
    """Different short names."""
    return [f"{stem}{number}" for number in range(count)]


def id_of(number: int) -> bytes:
    """An id that no topic has."""
    return struct.pack(">QQ", 1, number + 1)


def numbered(delta: int) -> bytes:
    """The record of an offset delta, without key and value."""
    body = b"\0\0" + encode_varint(delta) + b"\x01\x01\0"
    return encode_varint(len(body)) + body


def small_batch() -> bytearray:
    """One record."""
    return build_batch([NewRecord(None, b"x", 1)])


def claiming(payload: bytes, count: int, codec: int = 0) -> bytearray:
    """One batch, with a right checksum, whose header says that this payload is `count` records."""
    batch = build_batch([NewRecord(None, b"x", 1)])[:HEADER_SIZE] + compress(codec, payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return batch


# --- the requests of each family --------------------------------------------------------------------------------------


def produce_topics(count: int, records: bytes | None) -> produce.ProduceRequest:
    data = [produce.PartitionProduceData(index=0, records=records)]
    return produce.ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[produce.TopicProduceData(name=n, partition_data=data) for n in names(count)],
    )


def produce_partitions(
    count: int, records: bytes | bytearray | None, topic: str = WIDE, first: int = 0, step: int = 1
) -> produce.ProduceRequest:
    data = [produce.PartitionProduceData(index=first + n * step, records=records) for n in range(count)]
    return produce.ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[produce.TopicProduceData(name=topic, partition_data=data)]
    )


def fetch_of(topics: list[fetch.FetchTopic], **fields: Any) -> fetch.FetchRequest:
    defaults = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
    return fetch.FetchRequest(topics=topics, **(defaults | fields))


def fetch_partitions(count: int, topic: str = WIDE, first: int = 0, **fields: Any) -> fetch.FetchRequest:
    parts = [fetch.FetchPartition(partition=first + n, partition_max_bytes=1024) for n in range(count)]
    return fetch_of([fetch.FetchTopic(topic=topic, partitions=parts)], **fields)


def fetch_topics(count: int, **fields: Any) -> fetch.FetchRequest:
    parts = [fetch.FetchPartition(partition=0, partition_max_bytes=1024)]
    return fetch_of([fetch.FetchTopic(topic=name, partitions=parts) for name in names(count)], **fields)


def list_offsets(count: int, timestamp: int, *, first: int = 0, step: int = 1) -> offsets.ListOffsetsRequest:
    parts = [offsets.ListOffsetsPartition(partition_index=first + n * step, timestamp=timestamp) for n in range(count)]
    return offsets.ListOffsetsRequest(topics=[offsets.ListOffsetsTopic(name=WIDE, partitions=parts)])


def list_offsets_topics(count: int) -> offsets.ListOffsetsRequest:
    parts = [offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return offsets.ListOffsetsRequest(topics=[offsets.ListOffsetsTopic(name=n, partitions=parts) for n in names(count)])


def epochs_of(count: int, first: int = 0) -> offsets.OffsetForLeaderEpochRequest:
    parts = [offsets.OffsetForLeaderPartition(partition=first + n, leader_epoch=0) for n in range(count)]
    return offsets.OffsetForLeaderEpochRequest(
        replica_id=-2, topics=[offsets.OffsetForLeaderTopic(topic=WIDE, partitions=parts)]
    )


def metadata_of(found: list[str] | None, **fields: Any) -> metadata.MetadataRequest:
    topics = None if found is None else [metadata.MetadataRequestTopic(name=name) for name in found]
    return metadata.MetadataRequest(topics=topics, **({"allow_auto_topic_creation": False} | fields))


def commit_of(count: int, topic: str = WIDE, text: str = "") -> groups.OffsetCommitRequest:
    parts = [
        groups.OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata=text)
        for n in range(count)
    ]
    return groups.OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        topics=[groups.OffsetCommitRequestTopic(name=topic, partitions=parts)],
    )


def txn_commit_of(world: World, count: int) -> transactions.TxnOffsetCommitRequest:
    parts = [transactions.TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(count)]
    return transactions.TxnOffsetCommitRequest(
        transactional_id=TRANSACTION,
        group_id=GROUP,
        producer_id=world.producer_id,
        producer_epoch=world.producer_epoch,
        generation_id=-1,
        topics=[transactions.TxnOffsetCommitRequestTopic(name=WIDE, partitions=parts)],
    )


def offset_fetch(found: list[str], partitions: int | None) -> groups.OffsetFetchRequest:
    indexes = None if partitions is None else list(range(partitions))
    topics = None if indexes is None else [groups.OffsetFetchRequestTopics(name=WIDE, partition_indexes=indexes)]
    return groups.OffsetFetchRequest(
        groups=[groups.OffsetFetchRequestGroup(group_id=name, topics=topics) for name in found]
    )


def join_of(protocols: list[groups.JoinGroupRequestProtocol], group: str) -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=protocols,
    )


def sync_of(assignments: list[groups.SyncGroupRequestAssignment]) -> groups.SyncGroupRequest:
    return groups.SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="nobody", assignments=assignments)


def create_of(topics: list[admin.CreatableTopic], **fields: Any) -> admin.CreateTopicsRequest:
    return admin.CreateTopicsRequest(topics=topics, timeout_ms=60_000, **fields)


def creatable(found: list[str], count: int = 1) -> list[admin.CreatableTopic]:
    return [admin.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name in found]


def assigned_topic(name: str, assignments: list[list[int]]) -> admin.CreatableTopic:
    return admin.CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            admin.CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(assignments)
        ],
    )


def delete_of(found: list[str]) -> admin.DeleteTopicsRequest:
    return admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name=name) for name in found], timeout_ms=60_000)


def delete_records(count: int) -> admin.DeleteRecordsRequest:
    parts = [admin.DeleteRecordsPartition(partition_index=n, offset=0) for n in range(count)]
    return admin.DeleteRecordsRequest(topics=[admin.DeleteRecordsTopic(name=WIDE, partitions=parts)], timeout_ms=30_000)


def incremental(resources: list[tuple[int, str, list[str]]], **fields: Any) -> admin.IncrementalAlterConfigsRequest:
    return admin.IncrementalAlterConfigsRequest(
        resources=[
            admin.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[admin.AlterableConfig(name=key, config_operation=0, value="1000") for key in keys],
            )
            for kind, name, keys in resources
        ],
        **fields,
    )


def replacing(resources: list[tuple[int, str, list[str]]], **fields: Any) -> admin.AlterConfigsRequest:
    return admin.AlterConfigsRequest(
        resources=[
            admin.AlterConfigsRequestResource(
                resource_type=kind,
                resource_name=name,
                configs=[admin.AlterConfigsRequestConfig(name=key, value="1000") for key in keys],
            )
            for kind, name, keys in resources
        ],
        **fields,
    )


def describe_configs(
    resources: list[tuple[int, str]], keys: list[str] | None = None, **fields: Any
) -> admin.DescribeConfigsRequest:
    return admin.DescribeConfigsRequest(
        resources=[
            admin.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ],
        **fields,
    )


def widen(found: list[str], count: int = 10, **fields: Any) -> admin.CreatePartitionsRequest:
    return admin.CreatePartitionsRequest(
        topics=[admin.CreatePartitionsTopic(name=name, count=count, assignments=None) for name in found],
        timeout_ms=60_000,
        **fields,
    )


def reassign(partitions: list[tuple[int, list[int] | None]]) -> reassignments.AlterPartitionReassignmentsRequest:
    return reassignments.AlterPartitionReassignmentsRequest(
        timeout_ms=60_000,
        topics=[
            reassignments.ReassignableTopic(
                name=WIDE,
                partitions=[
                    reassignments.ReassignablePartition(partition_index=number, replicas=replicas)
                    for number, replicas in partitions
                ],
            )
        ],
    )


def add_partitions(world: World, count: int) -> transactions.AddPartitionsToTxnRequest:
    return transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TRANSACTION,
        v3_and_below_producer_id=world.producer_id,
        v3_and_below_producer_epoch=world.producer_epoch,
        v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name=WIDE, partitions=list(range(count)))],
    )


def add_transactions(count: int) -> transactions.AddPartitionsToTxnRequest:
    topics = [transactions.AddPartitionsToTxnTopic(name=WIDE, partitions=[0])]
    return transactions.AddPartitionsToTxnRequest(
        transactions=[
            transactions.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=1, producer_epoch=0, verify_only=True, topics=topics
            )
            for name in names(count)
        ]
    )


def markers(count: int, partitions: int) -> transactions.WriteTxnMarkersRequest:
    topics = [transactions.WritableTxnMarkerTopic(name=WIDE, partition_indexes=list(range(partitions)))]
    return transactions.WriteTxnMarkersRequest(
        markers=[
            transactions.WritableTxnMarker(
                producer_id=1_000_000 + n,
                producer_epoch=0,
                transaction_result=False,
                topics=topics,
                coordinator_epoch=0,
            )
            for n in range(count)
        ]
    )


def heartbeat(**fields: Any) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    defaults: dict[str, Any] = {
        "group_id": "huge-consumers",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": [],
        "topic_partitions": [],
    }
    return consumer_groups.ConsumerGroupHeartbeatRequest(**(defaults | fields))


def alter_partition(world: World, count: int, brokers: int = 1) -> cluster.AlterPartitionRequest:
    isr = [cluster.BrokerState(broker_id=1 + n, broker_epoch=-1) for n in range(brokers)]
    parts = [
        cluster.AlterPartitionRequestPartition(partition_index=n, leader_epoch=0, new_isr_with_epochs=isr)
        for n in range(count)
    ]
    topics = [cluster.AlterPartitionRequestTopic(topic_id=world.wide_id, partitions=parts)]
    return cluster.AlterPartitionRequest(broker_id=1, broker_epoch=-1, topics=topics)


def directories(world: World, count: int) -> cluster.AssignReplicasToDirsRequest:
    parts = [cluster.AssignReplicasToDirsRequestPartition(partition_index=n) for n in range(count)]
    topics = [cluster.AssignReplicasToDirsRequestTopic(topic_id=world.wide_id, partitions=parts)]
    return cluster.AssignReplicasToDirsRequest(
        broker_id=1, directories=[cluster.AssignReplicasToDirsRequestDirectory(id=id_of(1), topics=topics)]
    )


def broker_registration(**fields: Any) -> cluster.BrokerRegistrationRequest:
    return cluster.BrokerRegistrationRequest(broker_id=77, cluster_id="elsewhere", incarnation_id=id_of(7), **fields)


def listeners(count: int) -> list[cluster.RegistrationListener]:
    return [cluster.RegistrationListener(name=name, host="h", port=1) for name in names(count)]


def features(count: int) -> list[cluster.RegistrationFeature]:
    return [
        cluster.RegistrationFeature(name=name, min_supported_version=0, max_supported_version=1)
        for name in names(count)
    ]


def per_partition(
    topic: Any, part: Any, count: int, *, name: str = "topic_name", partition: str = "partition_index"
) -> list[Any]:
    """One topic with many partitions, in the classes of a Raft message."""
    return [topic(**{name: "__cluster_metadata", "partitions": [part(**{partition: n}) for n in range(count)]})]


# --- the catalogue ----------------------------------------------------------------------------------------------------


def catalogue() -> list[Huge]:
    """Every request, in the order in which they are sent: the last ones delete what others created."""
    found: list[Huge] = []

    def add(
        name: str, version: int, codes: set[int], request: Callable[[World], Any], listener: str = "broker"
    ) -> None:
        found.append(Huge(name, request, version, frozenset(codes), listener))

    half, third = ELEMENTS // 2, ELEMENTS // 3
    add("Produce: unknown topics", 9, {3}, lambda w: produce_topics(half, None))
    add("Produce: unknown partitions", 9, {3}, lambda w: produce_partitions(ELEMENTS - 1, None, first=w.partitions))
    add("Produce: a record for every partition", 9, {0}, lambda w: produce_partitions(w.partitions, small_batch()))
    add("Produce: one partition, often", 9, {0, 42}, lambda w: produce_partitions(half, small_batch(), step=0))
    add(
        "Produce: 68 bytes that claim 2^31 - 1 records",
        9,
        {87},
        lambda w: produce_partitions(1, claiming(RECORD, 2**31 - 1)),
    )
    add(
        "Produce: 2,000,000 records in a small zstd batch",
        9,
        {10},
        lambda w: produce_partitions(1, claiming(RECORD * 2_000_000, 2_000_000, 4)),
    )
    add(
        "Produce: 100,000 records in a small zstd batch",
        9,
        {0},
        lambda w: produce_partitions(1, claiming(b"".join(map(numbered, range(100_000))), 100_000, 4)),
    )
    add("Fetch: unknown topics", 12, {0, 3}, lambda w: fetch_topics(half))
    add("Fetch: unknown topics in a session", 12, {0, 3}, lambda w: fetch_topics(half, session_epoch=0))
    add("Fetch: unknown partitions", 12, {0, 3}, lambda w: fetch_partitions(ELEMENTS - 1, first=w.partitions))
    add("Fetch: every partition", 12, {0}, lambda w: fetch_partitions(w.partitions))
    add(
        "Fetch: every partition, waiting",
        12,
        {0},
        lambda w: fetch_partitions(w.partitions, max_wait_ms=100, min_bytes=1 << 30),
    )
    add(
        "Fetch: one partition, often",
        12,
        {0},
        lambda w: fetch_of(
            [fetch.FetchTopic(topic=WIDE, partitions=[fetch.FetchPartition(partition_max_bytes=1024)] * (ELEMENTS - 1))]
        ),
    )
    add(
        "Fetch: forgotten partitions",
        12,
        {0},
        lambda w: fetch_of(
            [],
            session_epoch=0,
            forgotten_topics_data=[fetch.ForgottenTopic(topic=WIDE, partitions=list(range(ELEMENTS - 1)))],
        ),
    )
    add("ListOffsets: unknown topics", 7, {3}, lambda w: list_offsets_topics(half))
    add("ListOffsets: unknown partitions", 7, {3}, lambda w: list_offsets(ELEMENTS - 1, -1, first=w.partitions))
    add("ListOffsets: every partition by time", 7, {0}, lambda w: list_offsets(w.partitions, 1))
    add("ListOffsets: one partition by time, often", 7, {42}, lambda w: list_offsets(ELEMENTS - 1, 1, step=0))
    add("OffsetForLeaderEpoch: unknown partitions", 4, {3}, lambda w: epochs_of(ELEMENTS - 1, w.partitions))
    add("OffsetForLeaderEpoch: every partition", 4, {0}, lambda w: epochs_of(w.partitions))
    add("Metadata: unknown topics", 12, {0, 3}, lambda w: metadata_of(names(ELEMENTS)))
    add("Metadata: one wide topic, often", 12, {0}, lambda w: metadata_of([WIDE] * ELEMENTS))
    add("Metadata: all topics", 12, {0}, lambda w: metadata_of(None))
    add(
        "Metadata: unknown ids",
        12,
        {0, 100},
        lambda w: metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(topic_id=id_of(n), name=None) for n in range(ELEMENTS)],
            allow_auto_topic_creation=False,
        ),
    )
    add(
        "Metadata: names that cannot be",
        12,
        {0, 17},
        lambda w: metadata_of([f"{n}/" for n in range(ELEMENTS)], allow_auto_topic_creation=True),
    )
    add(
        "DescribeTopicPartitions: unknown topics",
        0,
        {3},
        lambda w: metadata.DescribeTopicPartitionsRequest(
            topics=[metadata.TopicRequest(name=n) for n in names(ELEMENTS)]
        ),
    )
    add(
        "DescribeTopicPartitions: one wide topic, often",
        0,
        {0},
        lambda w: metadata.DescribeTopicPartitionsRequest(
            topics=[metadata.TopicRequest(name=WIDE)] * ELEMENTS, response_partition_limit=2**31 - 1
        ),
    )
    add(
        "ApiVersions: a long name",
        4,
        {0, 42},
        lambda w: metadata.ApiVersionsRequest(client_software_name="a" * 32_000, client_software_version="-" * 32_000),
    )
    add(
        "FindCoordinator: many groups",
        4,
        {0},
        lambda w: groups.FindCoordinatorRequest(key_type=0, coordinator_keys=names(ELEMENTS)),
    )
    add(
        "FindCoordinator: many transactions",
        4,
        {0},
        lambda w: groups.FindCoordinatorRequest(key_type=1, coordinator_keys=names(ELEMENTS)),
    )
    add("OffsetCommit: unknown partitions", 8, {3}, lambda w: commit_of(ELEMENTS - 1, "nowhere"))
    add("OffsetCommit: every partition", 8, {0}, lambda w: commit_of(w.partitions, text="m" * 200))
    add("OffsetCommit: long metadata", 8, {12, 3}, lambda w: commit_of(LARGE_BYTES // 8_000, text="m" * 7_900))
    add("OffsetFetch: every partition", 8, {0}, lambda w: offset_fetch([GROUP], w.partitions))
    add("OffsetFetch: partitions without an offset", 8, {0}, lambda w: offset_fetch([GROUP], ELEMENTS - 2))
    add("OffsetFetch: many groups", 8, {0}, lambda w: offset_fetch(names(ELEMENTS), None))
    add("OffsetFetch: all of one group, often", 8, {0, 42}, lambda w: offset_fetch([GROUP] * ELEMENTS, None))
    add(
        "OffsetDelete: every partition",
        0,
        {0, 3},
        lambda w: groups.OffsetDeleteRequest(
            group_id=GROUP,
            topics=[
                groups.OffsetDeleteRequestTopic(
                    name=WIDE,
                    partitions=[groups.OffsetDeleteRequestPartition(partition_index=n) for n in range(ELEMENTS - 1)],
                )
            ],
        ),
    )
    add(
        "JoinGroup: many protocols",
        9,
        {79},
        lambda w: join_of(
            [groups.JoinGroupRequestProtocol(name=name, metadata=b"") for name in names(ELEMENTS)], "huge-join"
        ),
    )
    add(
        "JoinGroup: long metadata",
        3,
        {0, 10, 42},
        lambda w: join_of(
            [groups.JoinGroupRequestProtocol(name="range", metadata=bytes(LARGE_BYTES))], "huge-metadata"
        ),
    )
    add(
        "SyncGroup: many assignments",
        5,
        {23, 25},
        lambda w: sync_of(
            [groups.SyncGroupRequestAssignment(member_id=name, assignment=b"") for name in names(ELEMENTS)]
        ),
    )
    add(
        "SyncGroup: a long assignment",
        5,
        {23, 25},
        lambda w: sync_of([groups.SyncGroupRequestAssignment(member_id="m", assignment=bytes(LARGE_BYTES))]),
    )
    add(
        "LeaveGroup: many members",
        5,
        {0, 25},
        lambda w: groups.LeaveGroupRequest(
            group_id=GROUP, members=[groups.MemberIdentity(member_id=name) for name in names(ELEMENTS)]
        ),
    )
    add("DescribeGroups: unknown groups", 6, {69}, lambda w: groups.DescribeGroupsRequest(groups=names(ELEMENTS)))
    add("DescribeGroups: one group, often", 6, {0}, lambda w: groups.DescribeGroupsRequest(groups=[GROUP] * ELEMENTS))
    add(
        "ListGroups: many filters",
        5,
        {0},
        lambda w: groups.ListGroupsRequest(states_filter=names(half), types_filter=names(half)),
    )
    add("DeleteGroups: unknown groups", 2, {69}, lambda w: groups.DeleteGroupsRequest(groups_names=names(ELEMENTS)))
    add(
        "ConsumerGroupDescribe: unknown groups",
        1,
        {69},
        lambda w: consumer_groups.ConsumerGroupDescribeRequest(group_ids=names(ELEMENTS)),
    )
    add(
        "ConsumerGroupHeartbeat: too many topics",
        1,
        {42},
        lambda w: heartbeat(member_id="names", subscribed_topic_names=names(ELEMENTS)),
    )
    add(
        "ConsumerGroupHeartbeat: many topics",
        1,
        {0},
        lambda w: heartbeat(member_id="names", subscribed_topic_names=names(20_000)),
    )
    add(
        "ConsumerGroupHeartbeat: many partitions",
        1,
        {42},
        lambda w: heartbeat(
            topic_partitions=[
                consumer_groups.TopicIdPartitions(topic_id=w.wide_id, partitions=list(range(ELEMENTS - 1)))
            ]
        ),
    )
    add(
        "ConsumerGroupHeartbeat: a long regular expression",
        1,
        {0, 42, 128},
        lambda w: heartbeat(group_id="huge-regex", subscribed_topic_names=None, subscribed_topic_regex="(a*)*" * 6_000),
    )
    add(
        "CreateTopics: names that cannot be",
        7,
        {17},
        lambda w: create_of(creatable([f"{n}/" for n in range(ELEMENTS)])),
    )
    add("CreateTopics: one name, often", 7, {42}, lambda w: create_of(creatable(["twice"] * ELEMENTS)))
    add("CreateTopics: 30,000 topics", 7, {0, 44}, lambda w: create_of(creatable(names(30_000)), validate_only=True))
    add(
        "CreateTopics: validated only",
        7,
        {0},
        lambda w: create_of(creatable(names(w.topics, "valid")), validate_only=True),
    )
    add("CreateTopics: 2^31 - 1 partitions", 7, {44, 37}, lambda w: create_of(creatable(["wider"], 2**31 - 1)))
    add(
        "CreateTopics: partitions assigned",
        7,
        {0},
        lambda w: create_of([assigned_topic("assigned", [[1]] * w.partitions)], validate_only=True),
    )
    add(
        "CreateTopics: 98,000 replicas",
        7,
        {39},
        lambda w: create_of([assigned_topic("replicas", [list(range(1, ELEMENTS - 1))])]),
    )
    add(
        "CreateTopics: 98,000 times one replica",
        7,
        {39},
        lambda w: create_of([assigned_topic("replicas", [[1] * (ELEMENTS - 2)])]),
    )
    add(
        "CreateTopics: 98,000 settings",
        7,
        {40},
        lambda w: create_of(
            [
                admin.CreatableTopic(
                    name="set",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[admin.CreatableTopicConfig(name=name, value="1") for name in names(ELEMENTS - 1)],
                )
            ]
        ),
    )
    add("CreateTopics: many topics", 7, {0}, lambda w: create_of(creatable(names(w.topics, "made"))))
    add("Metadata: all of many topics", 12, {0}, lambda w: metadata_of(None))
    add("CreatePartitions: unknown topics", 3, {3}, lambda w: widen(names(ELEMENTS)))
    add("CreatePartitions: validated only", 3, {0, 44}, lambda w: widen(names(w.topics, "made"), validate_only=True))
    add("CreatePartitions: one topic, often", 3, {42}, lambda w: widen([WIDE] * ELEMENTS))
    add("DescribeConfigs: unknown topics", 4, {3}, lambda w: describe_configs([(2, name) for name in names(ELEMENTS)]))
    add(
        "DescribeConfigs: many topics",
        4,
        {0},
        lambda w: describe_configs([(2, name) for name in names(w.topics, "made")], include_synonyms=True),
    )
    add(
        "DescribeConfigs: this broker, often",
        4,
        {0, 42},
        lambda w: describe_configs([(4, "1")] * ELEMENTS, include_synonyms=True, include_documentation=True),
    )
    add("DescribeConfigs: many keys", 4, {0}, lambda w: describe_configs([(2, WIDE)], names(ELEMENTS - 1)))
    add("AlterConfigs: unknown topics", 2, {3}, lambda w: replacing([(2, name, []) for name in names(ELEMENTS)]))
    add(
        "AlterConfigs: many topics",
        2,
        {0},
        lambda w: replacing([(2, name, ["retention.ms"]) for name in names(w.topics, "made")], validate_only=True),
    )
    add("AlterConfigs: many keys", 2, {40}, lambda w: replacing([(2, WIDE, names(ELEMENTS - 1))]))
    add(
        "IncrementalAlterConfigs: unknown topics",
        1,
        {3},
        lambda w: incremental([(2, name, []) for name in names(ELEMENTS)]),
    )
    add(
        "IncrementalAlterConfigs: many topics",
        1,
        {0},
        lambda w: incremental([(2, name, ["retention.ms"]) for name in names(w.topics, "made")]),
    )
    add("IncrementalAlterConfigs: one topic, often", 1, {42}, lambda w: incremental([(2, WIDE, [])] * ELEMENTS))
    add("IncrementalAlterConfigs: many keys", 1, {40}, lambda w: incremental([(2, WIDE, names(ELEMENTS - 1))]))
    add("DeleteRecords: every partition", 2, {0, 3}, lambda w: delete_records(ELEMENTS - 1))
    add(
        "DescribeLogDirs: many partitions",
        4,
        {0},
        lambda w: admin.DescribeLogDirsRequest(
            topics=[admin.DescribableLogDirTopic(topic=WIDE, partitions=list(range(ELEMENTS - 1)))]
        ),
    )
    add("DescribeLogDirs: all", 4, {0}, lambda w: admin.DescribeLogDirsRequest(topics=None))
    add(
        "ElectLeaders: many partitions",
        2,
        {0, 3, 84},
        lambda w: admin.ElectLeadersRequest(
            election_type=0,
            topic_partitions=[admin.ElectLeadersTopic(topic=WIDE, partitions=list(range(ELEMENTS - 1)))],
            timeout_ms=60_000,
        ),
    )
    add(
        "ElectLeaders: all",
        2,
        {0, 84},
        lambda w: admin.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=60_000),
    )
    add(
        "UpdateFeatures: many",
        2,
        {42, 95},
        lambda w: admin.UpdateFeaturesRequest(
            feature_updates=[admin.FeatureUpdateKey(feature=name, max_version_level=1) for name in names(ELEMENTS)],
            timeout_ms=60_000,
        ),
    )
    add("AlterPartitionReassignments: many partitions", 1, {0, 3}, lambda w: reassign([(n, [1]) for n in range(half)]))
    add(
        "AlterPartitionReassignments: 98,000 replicas",
        1,
        {0, 39},
        lambda w: reassign([(0, list(range(1, ELEMENTS - 1)))]),
    )
    add(
        "AlterPartitionReassignments: cancelled",
        1,
        {0, 3, 85},
        lambda w: reassign([(n, None) for n in range(ELEMENTS - 1)]),
    )
    add(
        "ListPartitionReassignments: many partitions",
        0,
        {0},
        lambda w: reassignments.ListPartitionReassignmentsRequest(
            timeout_ms=60_000,
            topics=[
                reassignments.ListPartitionReassignmentsTopics(name=WIDE, partition_indexes=list(range(ELEMENTS - 1)))
            ],
        ),
    )
    add("AddPartitionsToTxn: unknown partitions", 3, {0, 3, 55}, lambda w: add_partitions(w, ELEMENTS - 1))
    add("AddPartitionsToTxn: every partition", 3, {0}, lambda w: add_partitions(w, w.partitions))
    add("AddPartitionsToTxn: many transactions", 5, {0, 49}, lambda w: add_transactions(third))
    add("TxnOffsetCommit: every partition", 3, {0, 3, 48}, lambda w: txn_commit_of(w, ELEMENTS - 1))
    add("WriteTxnMarkers: many markers", 1, {0}, lambda w: markers(third, 1))
    add("WriteTxnMarkers: many partitions", 1, {0, 3}, lambda w: markers(1, ELEMENTS - 2))
    add(
        "DescribeProducers: many partitions",
        0,
        {0, 3},
        lambda w: transactions.DescribeProducersRequest(
            topics=[transactions.DescribeProducersTopic(name=WIDE, partition_indexes=list(range(ELEMENTS - 1)))]
        ),
    )
    add(
        "DescribeTransactions: unknown",
        0,
        {105},
        lambda w: transactions.DescribeTransactionsRequest(transactional_ids=names(ELEMENTS)),
    )
    add(
        "ListTransactions: many filters",
        2,
        {0, 128},
        lambda w: transactions.ListTransactionsRequest(
            state_filters=names(half), producer_id_filters=list(range(half)), transactional_id_pattern="(a*)*" * 6_000
        ),
    )
    add(
        "DescribeQuorum: many partitions",
        2,
        {0, 3},
        lambda w: quorum.DescribeQuorumRequest(
            topics=per_partition(quorum.DescribeQuorumRequestTopic, quorum.DescribeQuorumRequestPartition, ELEMENTS - 1)
        ),
    )
    # What only the controller listener serves.
    add("AlterPartition: many partitions", 3, {11, 77}, lambda w: alter_partition(w, half), "controller")
    add("AlterPartition: a large ISR", 3, {11, 77}, lambda w: alter_partition(w, 1, ELEMENTS - 2), "controller")
    add("AssignReplicasToDirs: many partitions", 0, {11, 77}, lambda w: directories(w, ELEMENTS - 2), "controller")
    add(
        "BrokerRegistration: many listeners",
        4,
        {104},
        lambda w: broker_registration(listeners=listeners(ELEMENTS)),
        "controller",
    )
    add(
        "BrokerRegistration: many features",
        4,
        {104},
        lambda w: broker_registration(features=features(ELEMENTS)),
        "controller",
    )
    add(
        "BrokerRegistration: many directories",
        4,
        {104},
        lambda w: broker_registration(log_dirs=[id_of(n) for n in range(ELEMENTS)]),
        "controller",
    )
    add(
        "BrokerHeartbeat: many directories",
        1,
        {11, 77, 102},
        lambda w: cluster.BrokerHeartbeatRequest(
            broker_id=77, broker_epoch=1, offline_log_dirs=[id_of(n) for n in range(ELEMENTS)]
        ),
        "controller",
    )
    add(
        "ControllerRegistration: many listeners",
        0,
        {0, 3, 35, 42},
        lambda w: cluster.ControllerRegistrationRequest(
            controller_id=77, incarnation_id=id_of(8), listeners=listeners(ELEMENTS)
        ),
        "controller",
    )
    add(
        "Vote: many partitions",
        2,
        {0, 42, 104, CLOSED},
        lambda w: quorum.VoteRequest(
            topics=per_partition(quorum.VoteRequestTopic, quorum.VoteRequestPartition, ELEMENTS - 1)
        ),
        "controller",
    )
    add(
        "BeginQuorumEpoch: many partitions",
        1,
        {0, 42, 104, CLOSED},
        lambda w: quorum.BeginQuorumEpochRequest(
            topics=per_partition(
                quorum.BeginQuorumEpochRequestTopic, quorum.BeginQuorumEpochRequestPartition, ELEMENTS - 1
            )
        ),
        "controller",
    )
    add(
        "EndQuorumEpoch: many partitions",
        1,
        {0, 42, 104, CLOSED},
        lambda w: quorum.EndQuorumEpochRequest(
            topics=per_partition(quorum.EndQuorumEpochRequestTopic, quorum.EndQuorumEpochRequestPartition, ELEMENTS - 1)
        ),
        "controller",
    )
    add(
        "FetchSnapshot: many partitions",
        1,
        {0, 3, 42, 98, 104, CLOSED},
        lambda w: quorum.FetchSnapshotRequest(
            topics=per_partition(
                quorum.FetchSnapshotRequestTopic,
                quorum.FetchSnapshotRequestPartition,
                ELEMENTS - 1,
                name="name",
                partition="partition",
            )
        ),
        "controller",
    )
    add(
        "CreatePartitions: as many as there were topics",
        3,
        {0},
        lambda w: widen(["made0"], w.topics),
    )
    add("DeleteTopics: unknown topics", 6, {3}, lambda w: delete_of(names(ELEMENTS)))
    add("DeleteTopics: one name, often", 6, {42}, lambda w: delete_of([WIDE] * ELEMENTS))
    add("DeleteTopics: many topics", 6, {0}, lambda w: delete_of(names(w.topics, "made")))
    add("DeleteTopics: a wide topic", 6, {0}, lambda w: delete_of([WIDE]))
    return found
