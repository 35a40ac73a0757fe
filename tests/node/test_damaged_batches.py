"""Batches that were damaged on the disk of a node: each reader is refused for that partition alone; the node and its connections live on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.protocol.messages.groups import FindCoordinatorRequest, OffsetFetchRequest
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, iter_batches, read_header
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import AppendOrigin
from tests.support.broker.fetches import parts, request, wanted
from tests.support.broker.nodes import Nodes, Peer
from tests.support.storage.damage import ALL_DAMAGE, HEADER_DAMAGE, payload
from tests.support.waiting import elapsed, until

NOW = 1_700_000_000_000
BATCHES = 12
DAMAGED = 5  # number of the batch, of one record
LARGE = 20_000  # bytes of a value that no log keeps in memory
KEEPS = {"retention_ms": "-1", "message_timestamp_before_max_ms": str(2**62)}


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]


def fill(node: Node, topic: str, partition: int = 0) -> None:
    """Batches of one record each, in a segment that is closed, and one more."""
    replica = node.replicas.leader(topic, partition)
    for number in range(BATCHES):
        replica.append(build_batch([NewRecord(b"k%d" % (number % 3), b"v", NOW + number)]))
    replica.log.roll(NOW)
    replica.append(build_batch([NewRecord(b"k", b"v", NOW + BATCHES)]))


def damage(disk: MemoryDisk, folder: str, change: Callable[[bytearray], None], number: int = DAMAGED) -> None:
    file = disk.open(f"{folder}/00000000000000000000.log")
    position = 0
    for _ in range(number):
        position += read_header(file.pread(61, position)).size_bytes
    batch = bytearray(file.pread(read_header(file.pread(61, position)).size_bytes, position))
    change(batch)
    file.pwrite(bytes(batch), position)
    file.close()


async def again(nodes: Nodes, disk: MemoryDisk, **settings: str) -> tuple[Node, Peer]:
    """The node stopped and started once more."""
    node = await nodes.start(disk, **settings)
    return node, await nodes.peer(node)


async def by_time(peer: Peer, topic: str, timestamp: int) -> list[tuple[int, int]]:
    """Code and offset of both partitions."""
    asked = [ListOffsetsPartition(partition_index=number, timestamp=timestamp) for number in (0, 1)]
    sent = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
    answer = await peer.call(sent, 8)
    return [(one.error_code, one.offset) for one in answer.topics[0].partitions]


@pytest.mark.parametrize("name", ALL_DAMAGE)
async def test_fetch_search_and_delete(nodes: Nodes, name: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    first = await nodes.start(disk)
    await (await nodes.peer(first)).create("t", 2, **KEEPS)
    for partition in (0, 1):
        fill(first, "t", partition)
    await first.stop()
    damage(disk, "t-0", ALL_DAMAGE[name])
    node, peer = await again(nodes, disk)

    for _ in range(3):
        one, other = parts(await peer.call(request(wanted(0, DAMAGED), wanted(1, DAMAGED), max_wait_ms=0), 11))
        assert one.error_code == (ErrorCode.CORRUPT_MESSAGE if name in HEADER_DAMAGE else 0)
        assert (other.error_code, bool(other.records)) == (0, True)
        (before,) = parts(await peer.call(request(wanted(0, 0), max_wait_ms=0), 11))
        assert [header.base_offset for _, header in iter_batches(before.records)][:DAMAGED] == list(range(DAMAGED))
        assert await by_time(peer, "t", NOW + DAMAGED) == [(ErrorCode.CORRUPT_MESSAGE, -1), (0, DAMAGED)]
        assert await by_time(peer, "t", NOW + 1) == [(0, 1), (0, 1)]
    assert len(errors(caplog)) <= 1

    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=BATCHES)])
    answer = await peer.call(DeleteRecordsRequest(topics=[topic], timeout_ms=5_000), 2)
    assert answer.topics[0].partitions[0].error_code == 0
    (after,) = parts(await peer.call(request(wanted(0, BATCHES)), 11))
    assert (after.error_code, bool(after.records)) == (0, True)
    assert (await peer.call(ApiVersionsRequest(), 0)).error_code == 0
    assert node.failure is None


@pytest.mark.parametrize("name", ALL_DAMAGE)
async def test_the_cleaner_leaves_the_log_and_goes_on_with_others(
    nodes: Nodes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    settings = {"log_cleaner_backoff_ms": "10", "log_flush_offset_checkpoint_interval_ms": "50"}
    first = await nodes.start(disk)
    compacted = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", **KEEPS}
    for topic in ("a", "b"):
        await (await nodes.peer(first)).create(topic, **compacted)
        fill(first, topic)
    await first.stop()
    damage(disk, "a-0", ALL_DAMAGE[name])
    node, peer = await again(nodes, disk, **settings)
    await until(lambda: node.replicas.leader("b", 0).log.cleaned_to == BATCHES)
    await until(lambda: any("a-0" in line for line in errors(caplog)))
    await elapsed(node.reactor.clock, 100)  # ten rounds of the cleaner
    assert len([line for line in errors(caplog) if "cannot be cleaned" in line]) == 1
    assert node.replicas.leader("a", 0).log.cleaned_to == 0
    assert (await peer.call(ApiVersionsRequest(), 0)).error_code == 0
    assert node.failure is None


@pytest.mark.parametrize(
    ("internal", "asked", "code_of"),
    [
        ("__consumer_offsets", OffsetFetchRequest(group_id="g", topics=None), lambda answer: answer.error_code),
        (
            "__transaction_state",
            InitProducerIdRequest(transactional_id="g", transaction_timeout_ms=1_000),
            lambda answer: answer.error_code,
        ),
    ],
)
@pytest.mark.parametrize("name", ["payload", "count 2^31-1", "length -12", "magic 7", "base offset -1"])
async def test_a_coordinator_does_not_serve_what_it_cannot_load(
    nodes: Nodes, internal: str, asked: Any, code_of: Callable[[Any], int], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    settings = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}
    first = await nodes.start(disk, **settings)
    peer = await nodes.peer(first)
    key_type = int(internal == "__transaction_state")
    await peer.call(FindCoordinatorRequest(key="g", key_type=key_type), 1)
    await until(lambda: first.replicas.get(internal, 0))
    replica = first.replicas.leader(internal, 0)
    for number in range(3):
        rows = [NewRecord(b"\0\x7f\0\0", b"an unknown kind", NOW + number)]
        replica.append(build_batch(rows), origin=AppendOrigin.COORDINATOR)
    replica.log.roll(NOW)
    await first.stop()
    change = payload if name == "payload" else ALL_DAMAGE[name]
    damage(disk, f"{internal}-0", change, 1)
    node, peer = await again(nodes, disk, **settings)
    for _ in range(3):
        assert code_of(await peer.call(asked, 4)) == ErrorCode.NOT_COORDINATOR
    lines = errors(caplog)
    assert len([line for line in lines if "cannot load" in line]) == 1
    assert len(lines) <= 2  # where it is damaged, and what follows
    assert not any(record.exc_info for record in caplog.records if record.levelno >= logging.ERROR)
    assert node.failure is None


def fill_large(node: Node, topic: str, partition: int = 0) -> None:
    """Batches that are read from the file, in the segment that still grows."""
    replica = node.replicas.leader(topic, partition)
    for number in range(BATCHES):
        replica.append(build_batch([NewRecord(b"k", bytes(LARGE), NOW + number)]))


MAGIC = ALL_DAMAGE["magic 7"]


@pytest.mark.parametrize("wakes", ["an append", "the deadline"])
@pytest.mark.parametrize("partitions", [2, 205], ids=["at once", "in slices"])
async def test_a_fetch_that_waits_meets_a_batch_that_was_damaged_since(
    nodes: Nodes, partitions: int, wakes: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk)
    peer, other = await nodes.peer(node), await nodes.peer(node)
    await peer.create("t", partitions, **KEEPS)
    await until(lambda: sum(one.is_leader for one in node.replicas.all() if one.topic == "t") == partitions)
    for partition in (0, 1):
        fill_large(node, "t", partition)
    first = [wanted(0, DAMAGED), wanted(1, DAMAGED)]
    rest = [wanted(number) for number in range(2, partitions)]
    patience_ms = 30_000 if wakes == "an append" else 500
    everything = (2 * BATCHES - 2 * DAMAGED) * (LARGE + 100)
    sent = peer.send(request(*first, *rest, max_wait_ms=patience_ms, min_bytes=everything), 11)
    replica = node.replicas.leader("t", 0)
    await until(lambda: replica.watchers)
    damage(disk, "t-0", MAGIC)
    if wakes == "an append":
        node.replicas.leader("t", 1).append(build_batch([NewRecord(b"k", bytes(100_000), NOW)]))
    found = {one.partition_index: one for one in parts(await peer.receive(sent))}
    assert found[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert (found[1].error_code, bool(found[1].records)) == (0, True)
    (one,) = parts(await other.call(request(wanted(0, DAMAGED), max_wait_ms=30_000), 11))
    assert one.error_code == ErrorCode.CORRUPT_MESSAGE
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=DAMAGED + 1)])
    answer = await other.call(DeleteRecordsRequest(topics=[topic], timeout_ms=5_000), 2)
    assert answer.topics[0].partitions[0].error_code == 0
    assert len(errors(caplog)) == 1
    assert node.failure is None


async def test_aborted_records_are_not_shown_where_the_transaction_index_is_damaged(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    first = await nodes.start(disk, transaction_partition_verification_enable="false")
    await (await nodes.peer(first)).create("t", 2, **KEEPS)
    for partition in (0, 1):
        replica = first.replicas.leader("t", partition)
        rows = [NewRecord(b"k", b"aborted", NOW)]
        replica.append(build_batch(rows, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
        replica.append_marker(7, 0, commit=False, coordinator_epoch=0, transaction_version=0)
        fill(first, "t", partition)
    await first.stop()
    node, peer = await again(nodes, disk)
    disk.replace("t-0/00000000000000000000.txnindex", b"\x7f" * 34)
    for _ in range(3):
        one, other = parts(await peer.call(request(wanted(0), wanted(1), isolation_level=1), 11))
        assert (one.error_code, bool(one.records)) == (ErrorCode.CORRUPT_MESSAGE, False)
        assert [(each.producer_id, each.first_offset) for each in other.aborted_transactions] == [(7, 0)]
        (plain,) = parts(await peer.call(request(wanted(0)), 11))
        assert (plain.error_code, bool(plain.records)) == (0, True)
    assert len(errors(caplog)) == 1
    assert node.failure is None
