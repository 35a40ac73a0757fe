"""What a leader of the quorum takes for committed, and what a fetch gets, over a log with several epochs."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quorum.core.leadership import Leadership
from barnabas.broker.quorum.core.messages import Fetch, LogPoint, SnapshotFetch
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.snapshots import SnapshotId, encode_snapshot
from barnabas.errors import ErrorCode
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.protocol.records import iter_batches
from barnabas.storage.disk import MemoryDisk
from tests.support.clock import ManualClock


def a_log() -> RaftLog:
    """Offsets 0, 1 of epoch 1; 2, 3 of epoch 3; 4 of epoch 5."""
    log = RaftLog(MemoryDisk(), BrokerConfig({"node.id": "1"}), ManualClock(), clean=False)
    for epoch, values in ((1, [b"a", b"b"]), (3, [b"c", b"d"]), (5, [b"e"])):
        log.append(values, epoch)
    log.sync_now()
    return log


def fetch(replica_id: int, epoch: int, end_offset: int, *, known: int = 0) -> Fetch:
    return Fetch(6, replica_id, LogPoint(epoch, end_offset), known, 500)


def test_nothing_is_committed_without_a_record_of_the_own_epoch() -> None:
    log = a_log()
    leadership = Leadership(1, 6, (1, 2, 3), log, 0)
    log.append_leader_change(6, 1, (1, 2, 3), (1, 2))
    log.sync_now()
    leadership.on_fetch(fetch(2, 5, 5), 0)  # a majority has everything of earlier epochs
    assert leadership.committed_end_offset() is None
    leadership.on_fetch(fetch(2, 6, 6), 0)
    assert leadership.committed_end_offset() == 6


def test_the_leader_counts_with_what_it_has_synced() -> None:
    log = a_log()
    leadership = Leadership(1, 6, (1, 2, 3), log, 0)
    log.append_leader_change(6, 1, (1, 2, 3), (1, 2))
    leadership.on_fetch(fetch(2, 6, 6), 0)
    assert leadership.committed_end_offset() is None
    leadership.on_fetch(fetch(3, 6, 6), 0)  # the two others are a majority without it
    assert leadership.committed_end_offset() == 6


@pytest.mark.parametrize(
    ("epoch", "end_offset", "diverging"),
    [
        (0, 0, None),
        (1, 1, None),
        (1, 2, None),
        (3, 4, None),
        (5, 5, None),
        (1, 3, (1, 2)),  # it has more of epoch 1
        (2, 3, (1, 2)),  # of an epoch that is not known here
        (4, 4, (3, 4)),  # as long as here, and of another epoch
        (5, 9, (5, 5)),
        (6, 5, (5, 5)),
    ],
)
def test_where_logs_part(epoch: int, end_offset: int, diverging: tuple[int, int] | None) -> None:
    leadership = Leadership(1, 6, (1, 2, 3), a_log(), 0)
    request = fetch(2, epoch, end_offset)
    reply = leadership.reply(request, 0, 10_000, waited=True)
    assert reply is not None
    assert reply.diverging == diverging
    assert reply.snapshot is None
    found = [header.base_offset for _, header in iter_batches(reply.records)]
    assert bool(found) == (diverging is None and end_offset < 5)
    leadership.on_fetch(request, 7)
    assert (leadership.voters[2].last_fetch_ms == 7) == (diverging is None)  # only a true follower counts


@pytest.mark.parametrize(
    ("epoch", "end_offset", "snapshot"),
    [(1, 2, True), (3, 4, False), (1, 4, True), (3, 3, True), (5, 5, False), (0, 0, True)],
)
def test_a_log_that_no_longer_reaches_back_offers_its_snapshot(epoch: int, end_offset: int, snapshot: bool) -> None:
    log = a_log()
    taken = SnapshotId(4, 3)
    for each in (SnapshotId(2, 1), taken):
        log.store_snapshot(each, encode_snapshot([], epoch=each.epoch, last_timestamp_ms=0, now_ms=0))
    log.apply_retention(0, 5)
    assert log.start_offset == 4
    leadership = Leadership(1, 6, (1, 2, 3), log, 0)
    reply = leadership.reply(fetch(2, epoch, end_offset), 0, 10_000, waited=True)
    assert reply is not None
    assert reply.snapshot == (taken if snapshot else None)
    assert reply.diverging is None


def test_of_two_processes_with_one_id_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    log = a_log()
    leadership = Leadership(1, 6, (1, 2, 3), log, 0)
    log.append_leader_change(6, 1, (1, 2, 3), (1, 2))
    log.sync_now()

    def fetched(directory: bytes, epoch: int, end_offset: int, now_ms: int) -> None:
        leadership.on_fetch(Fetch(6, 2, LogPoint(epoch, end_offset), 0, 500, directory.ljust(16)), now_ms)

    fetched(b"a", 5, 5, 0)
    for now_ms in (500, 1_000):
        fetched(b"b", 6, 6, now_ms)
    assert leadership.committed_end_offset() is None
    assert caplog.text.count("each node needs an id of its own: node_id=2") == 1
    fetched(b"", 5, 5, 1_500)  # one that does not say
    fetched(b"a", 6, 6, 1_900)
    assert leadership.committed_end_offset() == 6
    fetched(b"b", 6, 6, 3_900)  # the first is gone: its disk was replaced
    assert leadership.voters[2].last_fetch_ms == 3_900


def test_snapshots_are_kept_by_size_and_by_age() -> None:
    log = a_log()
    now_ms = ManualClock().now_ms()
    for each, age_ms in ((SnapshotId(2, 1), 5_000), (SnapshotId(4, 3), 2_000), (SnapshotId(5, 5), 1_000)):
        said_ms = now_ms - age_ms
        log.store_snapshot(each, encode_snapshot([], epoch=each.epoch, last_timestamp_ms=said_ms, now_ms=now_ms))
    log.apply_retention(1 << 20, 5)
    log.apply_retention(1 << 20, 5, 5_000)
    assert log.start_offset == 0
    log.apply_retention(1 << 20, 5, 4_999)
    assert log.start_offset == 4
    log.apply_retention(1 << 20, 5, 0)
    assert log.start_offset == 5
    log.apply_retention(0, 5, 0)
    assert log.start_offset == 5, "the newest stays"


def test_a_fetch_waits_until_there_is_news() -> None:
    leadership = Leadership(1, 6, (1, 2, 3), a_log(), 0)
    request = fetch(2, 5, 5, known=3)
    assert leadership.reply(request, 3, 10_000, waited=False) is None
    told = leadership.reply(request, 4, 10_000, waited=False)  # the high watermark is news, too (KIP-1166)
    assert told is not None
    assert (told.high_watermark, bytes(told.records)) == (4, b"")
    assert leadership.reply(request, 3, 10_000, waited=True) is not None


def test_parts_of_a_snapshot() -> None:
    log = a_log()
    snapshot = SnapshotId(4, 3)
    data = encode_snapshot([b"x" * 100], epoch=3, last_timestamp_ms=0, now_ms=0)
    log.store_snapshot(snapshot, data)
    leadership = Leadership(1, 6, (1, 2, 3), log, 0)
    found = b""
    while len(found) < len(data):
        reply = leadership.snapshot_reply(SnapshotFetch(6, 2, snapshot, len(found), 50), 0)
        assert (reply.error, reply.position, reply.size_bytes) == (ErrorCode.NONE, len(found), len(data))
        found += reply.data
    assert found == data
    beyond = leadership.snapshot_reply(SnapshotFetch(6, 2, snapshot, len(data), 50), 0)
    assert beyond.error is ErrorCode.POSITION_OUT_OF_RANGE
    assert (
        leadership.snapshot_reply(SnapshotFetch(6, 2, SnapshotId(3, 3), 0, 50), 0).error is ErrorCode.SNAPSHOT_NOT_FOUND
    )
    assert leadership.snapshot_reply(SnapshotFetch(6, 2, snapshot, -1, 50), 0).error is ErrorCode.POSITION_OUT_OF_RANGE


def test_a_majority_must_fetch() -> None:
    leadership = Leadership(1, 6, (1, 2, 3, 4, 5), a_log(), 100)
    assert leadership.majority_until_ms(3_000) == 3_100
    leadership.on_fetch(fetch(2, 5, 5), 200)
    assert leadership.majority_until_ms(3_000) == 3_100
    leadership.on_fetch(fetch(4, 5, 5), 300)
    assert leadership.majority_until_ms(3_000) == 3_200
    assert leadership.successors() == (2, 4, 3, 5)
    assert Leadership(1, 6, (1,), a_log(), 0).majority_until_ms(3_000) is None


def test_a_cut_is_durable_before_anything_is_written_behind_it() -> None:
    disk = MemoryDisk()
    config = BrokerConfig({"node.id": "1"})
    log = RaftLog(disk, config, ManualClock(), clean=False)
    log.append([b"1"], 1)
    log.append([b"2"], 1)
    log.append([b"3"], 1)
    log.sync_now()
    log.truncate_to(1)
    log.append([b"4"], 2)  # as long as the batch that stood here: without the cut the third would follow it
    file = next(name for name in disk.listdir(CLUSTER_METADATA_FOLDER) if name.endswith(".log"))
    size = disk.size(f"{CLUSTER_METADATA_FOLDER}/{file}")
    disk.crash()
    log = RaftLog(disk, config, ManualClock(), clean=False)
    assert log.end == LogPoint(1, 1)
    assert disk.size(f"{CLUSTER_METADATA_FOLDER}/{file}") < size
