"""Settings of a node have their effect: what clients see of each, and where those of a core arrive that tests its rule itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from barnabas.broker.coordinator.group_coordinator import settings_of
from barnabas.broker.quorum.core.snapshots import list_snapshots
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.protocol.messages.metadata import DescribeTopicPartitionsRequest, TopicRequest
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.compaction import ENTRY_BYTES
from tests.support.broker.nodes import Nodes
from tests.support.waiting import elapsed, until


async def test_settings_of_groups(nodes: Nodes) -> None:
    node = await nodes.start(
        **{
            "group.min.session.timeout.ms": "11",
            "group.max.session.timeout.ms": "12",
            "group.max.size": "13",
            "group.initial.rebalance.delay.ms": "14",
            "offset.metadata.max.bytes": "15",
            "offsets.retention.minutes": "16",
            "group.consumer.max.size": "17",
            "group.consumer.migration.policy": "upgrade",
            "group.consumer.min.assignment.interval.ms": "18",
            "group.consumer.max.assignment.interval.ms": "20000",
            "group.consumer.max.heartbeat.interval.ms": "21000",
        }
    )
    settings = settings_of(node.config)
    assert (settings.session_timeout_min_ms, settings.session_timeout_max_ms) == (11, 12)
    assert (settings.size_max, settings.initial_rebalance_delay_ms) == (13, 14)
    assert (settings.offset_metadata_bytes_max, settings.offsets_retention_ms) == (15, 16 * 60_000)
    consumers = node.groups.consumer_settings("g")
    assert (consumers.size_max, consumers.upgrades, consumers.downgrades) == (17, True, False)


# -- what clients see


async def test_groups_keep_to_their_limits(nodes: Nodes) -> None:
    limits = {"group.max.session.timeout.ms": "20000", "group.max.size": "1", "offset.metadata.max.bytes": "3"}
    node = await nodes.start(**limits, **{"group.initial.rebalance.delay.ms": "0"})
    peer, another = await nodes.peer(node), await nodes.peer(node)

    def join(session_timeout_ms: int) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range")],
        )

    async def code_of(joining: Any, session_timeout_ms: int) -> int:
        while True:
            answer = await joining.call(join(session_timeout_ms), 3)
            if answer.error_code not in (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ):
                return int(answer.error_code)

    made: list[Any] = []
    node.controller.ensure_topic("__consumer_offsets", made.append)
    await until(lambda: made == [None])
    assert await code_of(peer, 20_001) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert await code_of(peer, 20_000) == 0
    assert await code_of(another, 20_000) == ErrorCode.GROUP_MAX_SIZE_REACHED
    await peer.create("t")
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="long")
    commit = OffsetCommitRequest(group_id="simple", topics=[OffsetCommitRequestTopic(name="t", partitions=[part])])
    while True:
        code = (await peer.call(commit, 2)).topics[0].partitions[0].error_code
        if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
    assert code == ErrorCode.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize(("protocols", "code"), [("classic", ErrorCode.UNSUPPORTED_VERSION), ("classic,consumer", 0)])
async def test_consumer_groups_are_served_where_the_protocols_of_the_node_name_them(
    nodes: Nodes, protocols: str, code: int
) -> None:
    node = await nodes.start(**{"group.coordinator.rebalance.protocols": protocols})
    peer = await nodes.peer(node)
    made: list[Any] = []
    node.controller.ensure_topic("__consumer_offsets", made.append)
    await until(lambda: made == [None])
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    while True:
        answered = (await peer.call(heartbeat, 1)).error_code
        if answered not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            break
    assert answered == code
    described = await peer.call(ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
    assert [group.error_code for group in described.groups] == [code]


async def test_pages_sessions_and_transactions_keep_to_their_limits(nodes: Nodes) -> None:
    node = await nodes.start(
        **{
            "max.request.partition.size.limit": "2",
            "max.incremental.fetch.session.cache.slots": "0",
            "transaction.max.timeout.ms": "1000",
        }
    )
    peer = await nodes.peer(node)
    await peer.create("t", 3)
    page = await peer.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0)
    assert [part.partition_index for part in page.topics[0].partitions] == [0, 1]
    assert page.next_cursor is not None
    wanted = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=100)])
    fetched = await peer.call(FetchRequest(max_bytes=100, session_epoch=0, topics=[wanted]), 12)
    assert (fetched.error_code, fetched.session_id) == (0, 0)
    made: list[Any] = []
    node.controller.ensure_topic("__transaction_state", made.append)
    await until(lambda: made == [None])
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1_001)
    assert (await peer.call(request, 4)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


async def test_a_snapshot_is_taken_after_the_interval(nodes: Nodes) -> None:
    node = await nodes.start(**{"metadata.log.max.snapshot.interval.ms": "1"})
    peer = await nodes.peer(node)
    await peer.create("t")
    await until(lambda: bool(list_snapshots(node.log_dirs.main.disk, CLUSTER_METADATA_FOLDER)))


async def test_snapshots_go_after_their_time(nodes: Nodes) -> None:
    node = await nodes.start(**{"metadata.log.max.snapshot.interval.ms": "1", "metadata.max.retention.ms": "1"})
    peer = await nodes.peer(node)
    await peer.create("first")
    await until(lambda: bool(list_snapshots(node.log_dirs.main.disk, CLUSTER_METADATA_FOLDER)))
    oldest = list_snapshots(node.log_dirs.main.disk, CLUSTER_METADATA_FOLDER)[0]
    await elapsed(node.reactor.clock, 2)  # the snapshot is older than a millisecond then
    await peer.create("second")
    await until(lambda: oldest not in list_snapshots(node.log_dirs.main.disk, CLUSTER_METADATA_FOLDER))


async def test_records_from_too_far_ahead_are_refused_by_node_and_topic(nodes: Nodes) -> None:
    node = await nodes.start(**{"log.message.timestamp.after.max.ms": "1000"})
    peer = await nodes.peer(node)
    await peer.create("strict")
    await peer.create("lax", message_timestamp_after_max_ms="100000")
    ahead = build_batch([NewRecord(None, b"", node.reactor.clock.now_ms() + 60_000)])
    with pytest.raises(BrokerError) as refused:
        node.replicas.leader("strict", 0).append(bytes(ahead))
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    assert node.replicas.leader("lax", 0).append(bytes(ahead)).base_offset == 0


CLEANED = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0"}


async def cleanings(nodes: Nodes, caplog: pytest.LogCaptureFixture, **settings: str) -> list[tuple[int, int, int]]:
    """Of a log of 1.2 MB with 1,200 keys: (bytes before, keys, milliseconds) of each cleaning until all is clean."""
    caplog.set_level(logging.INFO, "barnabas.kafka.log.LogCleaner")
    node = await nodes.start(**{"log.cleaner.backoff.ms": "10", **settings})
    peer = await nodes.peer(node)
    await peer.create("t", **CLEANED)
    replica = node.replicas.leader("t", 0)
    for number in range(1_200):
        replica.append(build_batch([NewRecord(b"%d" % number, bytes(1_000), node.reactor.clock.now_ms())]))
    end = replica.log.segments.active.base_offset

    def told() -> list[tuple[int, ...]]:
        return [record.args[1:] for record in caplog.records if "Cleaner run:" in record.msg and record.args]  # type: ignore[misc,index]  # a tuple of numbers behind the replica

    await until(lambda: bool(told()) and told()[-1][0] >= end)
    return [(each[1], each[4], each[5]) for each in told()]


async def test_the_cleaner_keeps_to_its_rate(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    ((size_bytes, _, took_ms),) = await cleanings(nodes, caplog, **{"log.cleaner.io.max.bytes.per.second": "4000000"})
    assert took_ms >= size_bytes / 4_000 * 0.95  # timers count whole milliseconds


async def test_the_cleaner_keeps_to_its_memory(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    found = await cleanings(nodes, caplog, **{"log.cleaner.dedupe.buffer.size": "100000"})
    assert len(found) > 1
    assert max(keys for _, keys, _ in found) * ENTRY_BYTES <= 100_000
