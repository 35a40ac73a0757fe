"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.log_config import AppendOrigin
from barnabas.storage.steps import INLINE_BYTES_MAX
from tests.support.broker.nodes import Nodes, Peer

BASE_MS = int(time.time() * 1000) - 100_000


def fill(node: Node, *offsets_ms: int) -> None:
    """One batch a timestamp, in this order."""
    replica = node.replicas.leader("t", 0)
    for offset_ms in offsets_ms:
        replica.append(build_batch([NewRecord(None, b"x", BASE_MS + offset_ms)]))


async def ask(
    peer: Peer, timestamp: int, version: int = 11, *, isolation_level: int = 0, epoch: int = -1, partition: int = 0
) -> ListOffsetsPartitionResponse:
    one = ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[ListOffsetsTopic(name="t", partitions=[one])]
    )
    (answer,) = (await peer.call(request, version)).topics[0].partitions
    return answer  # type: ignore[no-any-return]  # decoded


@pytest.mark.parametrize("version", range(1, 12))
async def test_bounds_in_every_version(peer: Peer, node: Node, version: int) -> None:
    await peer.create("t")
    fill(node, 0, 1, 2)
    node.replicas.leader("t", 0).delete_records_before(1)
    latest, earliest = await ask(peer, -1, version), await ask(peer, -2, version)
    assert (latest.offset, latest.timestamp, latest.error_code) == (3, -1, 0)
    assert (earliest.offset, earliest.timestamp, earliest.error_code) == (1, -1, 0)
    assert latest.leader_epoch == (node.replicas.leader("t", 0).leader_epoch if version >= 4 else -1)


async def test_a_large_batch_is_decompressed_beside_the_loop(nodes: Nodes, node: Node, peer: Peer) -> None:
    """Two of them in one request; others are served meanwhile, and a connection that closes is not answered."""
    await peer.create("t", 2)
    for number in range(2):
        records = [NewRecord(None, bytes(INLINE_BYTES_MAX), BASE_MS), NewRecord(None, b"x", BASE_MS + 5)]
        node.replicas.leader("t", number).append(build_batch(records, compression=4), origin=AppendOrigin.COORDINATOR)
    asked, opened = asyncio.Queue[None](), asyncio.Queue[None]()

    async def offload(work: Callable[[], None]) -> None:
        asked.put_nowait(None)
        await opened.get()
        work()

    node.slices.in_thread = partial(node.reactor.run_beside, offload)
    parts = [ListOffsetsPartition(partition_index=number, timestamp=BASE_MS + 5) for number in range(2)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=parts)])
    gone = await nodes.peer(node)
    gone.send(request, 11)
    await asked.get()
    gone.writer.close()
    sent = peer.send(request, 11)
    other = await nodes.peer(node)
    for _ in range(2):
        assert (await ask(other, -1)).offset == 2
        opened.put_nowait(None)
        await asked.get()
    for _ in range(9):  # also the encoding of the answers
        opened.put_nowait(None)
    answers = (await peer.receive(sent)).topics[0].partitions
    assert [(each.offset, each.timestamp, each.error_code) for each in answers] == [(1, BASE_MS + 5, 0)] * 2


async def test_by_timestamp(peer: Peer, node: Node) -> None:
    await peer.create("t")
    fill(node, 0, 1_000, 500, 3_000)
    for asked, offset, found in ((-1, 0, 0), (0, 0, 0), (1, 1, 1_000), (1_001, 3, 3_000), (3_000, 3, 3_000)):
        answer = await ask(peer, BASE_MS + asked)
        assert (answer.offset, answer.timestamp) == (offset, BASE_MS + found), asked
    beyond = await ask(peer, BASE_MS + 3_001)
    assert (beyond.offset, beyond.timestamp, beyond.leader_epoch, beyond.error_code) == (-1, -1, -1, 0)


async def test_special_timestamps_and_the_versions_that_know_them(peer: Peer, node: Node) -> None:
    await peer.create("t")
    fill(node, 0, 5_000, 2_000)
    greatest = await ask(peer, -3, 7)
    assert (greatest.offset, greatest.timestamp) == (1, BASE_MS + 5_000)
    assert (await ask(peer, -4, 8)).offset == 0
    assert (await ask(peer, -5, 9)).offset == -1
    for timestamp, version in ((-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11)):
        assert (await ask(peer, timestamp, version)).error_code == ErrorCode.UNSUPPORTED_VERSION, timestamp


async def test_read_committed_ends_at_the_last_stable_offset(peer: Peer, node: Node) -> None:
    await peer.create("t")
    fill(node, 0)
    replica = node.replicas.leader("t", 0)
    records = build_batch(
        [NewRecord(None, b"x", BASE_MS + 1_000)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    replica.append(records, guard=replica.verification_guard(1, 0, 0))
    assert (await ask(peer, -1, isolation_level=1)).offset == 1
    assert (await ask(peer, -1)).offset == 2
    assert (await ask(peer, BASE_MS + 500, isolation_level=1)).offset == -1
    assert (await ask(peer, BASE_MS + 500)).offset == 1


async def test_what_is_refused(peer: Peer, node: Node) -> None:
    await peer.create("t")
    epoch = node.replicas.leader("t", 0).leader_epoch
    assert (await ask(peer, -1, partition=9)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await ask(peer, -1, epoch=epoch + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    node.replicas.leader("t", 0).lead(epoch + 1, (1,), 1)
    assert (await ask(peer, -1, epoch=epoch)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    one = ListOffsetsPartition(partition_index=0, timestamp=-1)
    twice = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[one, one])])
    answers = (await peer.call(twice, 5)).topics[0].partitions
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST], "once, as Kafka does"


@pytest.mark.parametrize("code_by_version", [(5, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)])
async def test_a_new_leader_tells_its_latest_once_it_has_committed_what_it_began_with(
    peer: Peer, node: Node, code_by_version: tuple[int, ErrorCode]
) -> None:
    version, code = code_by_version
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    fill(node, 0)
    replica.lead(replica.leader_epoch + 1, (1, 2), 1, replicas=(1, 2))
    fill(node, 1)
    replica.lead(replica.leader_epoch + 1, (1, 2), 2, replicas=(1, 2))
    assert (replica.high_watermark, replica.epoch_start_offset) == (1, 2)
    assert (await ask(peer, -1, version=version)).error_code == code
    assert (await ask(peer, BASE_MS + 1, version=version)).error_code == code, "the leader before may have told it"
    assert (await ask(peer, BASE_MS, version=version)).offset == 0
    assert (await ask(peer, -2, version=version)).offset == 0
    replica.on_follower_fetch(2, -1, 2, 0)
    assert (await ask(peer, -1, version=version)).offset == 2


async def test_a_followers_latest_is_the_logs_end(peer: Peer, node: Node) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    replica.lead(replica.leader_epoch + 1, (1, 2), 1, replicas=(1, 2))
    fill(node, 0, 1)
    one = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=2, topics=[ListOffsetsTopic(name="t", partitions=[one])])
    (answer,) = (await peer.call(request, 9)).topics[0].partitions
    assert (answer.error_code, answer.offset) == (0, 2)


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_where_epochs_end(peer: Peer, node: Node, version: int) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    first = replica.leader_epoch
    fill(node, 0, 1)
    replica.lead(first + 3, (1,), 1)
    fill(node, 2)

    async def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
        one = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[one])])
        (answer,) = (await peer.call(request, version)).topics[0].partitions
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert await end(first) == (0, first, 2)
    assert await end(first + 1) == (0, first, 2)
    assert await end(first + 3) == (0, first + 3, 3)
    assert await end(first + 4) == (0, -1, -1)
    replica = node.replicas.leader("t", 0)
    replica._followed_since_ms = lambda: 0  # the session is over
    replica.in_sync.maximal = (node.node_id, 99)  # this one can be elected, and may know the epoch
    assert await end(first + 4) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    assert await end(first + 3) == (0, first + 3, 3)
    replica._followed_since_ms = lambda: None
    assert await end(first, current=first) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
