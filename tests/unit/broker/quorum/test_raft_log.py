"""The metadata log on disk: damage behind a clean stop, and what a voter that has it may do."""

from __future__ import annotations

import asyncio
import copy
import random
import stat
import sys
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quorum.core import snapshots
from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.core.messages import BeginEpoch, Fetch, FetchReply, LogPoint, Vote
from barnabas.broker.quorum.core.quorum_state import QuorumState
from barnabas.broker.quorum.core.raft_log import ASIDE, LOST_RECORDS, RaftLog
from barnabas.broker.quorum.core.roles import Role, Timing
from barnabas.broker.quorum.core.snapshots import SnapshotId, encode_snapshot, list_snapshots, snapshot_name
from barnabas.broker.quorum.core.voters import VoterSet
from barnabas.broker.quorum.snapshot_writer import SnapshotWriter, write_snapshot
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.loggers import RateLimitedLogger, logger
from barnabas.ports import Disk
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, stamp
from barnabas.runtime.files import FileDisk
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.clock import ManualClock
from tests.support.rng import SeededRng
from tests.support.waiting import until

LOG = f"{CLUSTER_METADATA_FOLDER}/00000000000000000000.log"
CONFIG = BrokerConfig({"node.id": "1"})
VOTERS = (1, 2, 3)
CHANGING = ("pwrite", "truncate", "create", "rename", "remove", "sync", "discard")


def open_log(disk: Disk, *, clean: bool = True, alone: bool = False) -> RaftLog:
    return RaftLog(disk, CONFIG, ManualClock(), clean=clean, alone=alone)


def damaged() -> tuple[FaultyMemoryDisk, list[bytes]]:
    """The disk of a voter that stopped cleanly with two records, the second of them damaged since; and the batches as they were."""
    disk = FaultyMemoryDisk()
    raft_log = open_log(disk)
    batches, at = [], 0
    for value in (b"first", b"second"):
        raft_log.append([value], 1)
        batches.append(disk.read(LOG)[at:])
        at = disk.size(LOG)
    raft_log.close()
    file = disk.open(LOG)
    file.pwrite(b"#", at - 3)
    disk.sync_now([file])
    file.close()
    return disk, batches


def member(raft_log: RaftLog) -> RaftMachine:
    return RaftMachine(
        1,
        VOTERS,
        raft_log,
        QuorumState(leader_epoch=1, voters=VOTERS),
        store=lambda state: None,
        random=random.Random(1).random,
        timing=Timing(),
        limited_log=RateLimitedLogger(logger("kafka.raft"), lambda: 0),
    )


def test_a_voter_that_lost_what_it_acknowledged_gives_no_vote_until_it_has_it_again() -> None:
    disk, batches = damaged()
    raft_log = open_log(disk)
    assert (raft_log.end_offset, raft_log.lost_records) == (1, True)
    raft_log.close()
    machine = member(open_log(disk))
    assert machine.log.lost_records, "another start does not bring it back"
    machine.start(0)
    for now_ms in range(0, 20_000, 100):
        machine.on_timer(now_ms)
    assert machine.role is Role.UNATTACHED, "it does not stand for election"
    for pre_vote in (True, False):
        assert not machine.on_vote(Vote(2, 3, LogPoint(1, 1), pre_vote), 20_000).granted

    machine = member(open_log(disk))
    machine.start(0)
    machine.on_timer(100)
    (looks,) = machine.take_outgoing()
    machine.on_reply(looks.to, looks.request, FetchReply(ErrorCode.FENCED_LEADER_EPOCH, 2, 3), 100)
    (fetches,) = machine.take_outgoing()
    assert isinstance(fetches.request, Fetch)
    assert (fetches.to, fetches.request.log) == (2, LogPoint(1, 1))
    lost = FetchReply(ErrorCode.NONE, 2, 3, high_watermark=2, log_start_offset=0, records=batches[1])
    machine.on_reply(2, fetches.request, lost, 200)
    assert machine.log.lost_records, "the leader may have more"
    machine.log.sync_now()
    machine.on_synced(200)
    (fetches,) = machine.take_outgoing()
    nothing = FetchReply(ErrorCode.NONE, 2, 3, high_watermark=2, log_start_offset=0)
    machine.on_reply(2, fetches.request, nothing, 700)
    assert not machine.log.lost_records
    assert machine.is_voter
    machine.log.close()
    assert not open_log(disk).lost_records


def test_damage_that_nobody_can_mend_is_left_as_it_is() -> None:
    disk, _ = damaged()
    before = disk.read(LOG)
    with pytest.raises(InvariantViolated, match="restore it from a copy"):
        open_log(disk, alone=True)
    assert disk.read(LOG) == before


async def test_a_snapshot_is_written_aside_and_has_its_name_when_it_is_durable() -> None:
    disk = FaultyMemoryDisk()
    raft_log = open_log(disk)
    raft_log.append([b"value"], 1)
    data = encode_snapshot([b"value"] * 3_000, epoch=1, last_timestamp_ms=0, now_ms=0)
    await write_snapshot(raft_log, SnapshotId(1, 1), data)
    disk.crash()
    again = open_log(disk, clean=False)
    assert again.latest_snapshot == SnapshotId(1, 1)
    assert list(again.snapshot_values()) == [b"value"] * 3_000


async def test_a_snapshot_that_was_not_finished_is_removed_at_the_next_start() -> None:
    disk = FaultyMemoryDisk()
    raft_log = open_log(disk)
    raft_log.append([b"value"], 1)
    raft_log.close()
    part = f"{CLUSTER_METADATA_FOLDER}/{snapshot_name(SnapshotId(1, 1))}{ASIDE}"
    disk.replace(part, b"half")
    assert open_log(disk).latest_snapshot is None
    assert not disk.exists(part)


async def test_a_snapshot_is_dropped_where_a_newer_one_came_meanwhile() -> None:
    disk = FaultyMemoryDisk()
    raft_log = open_log(disk)
    for _ in range(2):
        raft_log.append([b"value"], 1)
    data = encode_snapshot([b"value"], epoch=1, last_timestamp_ms=0, now_ms=0)
    raft_log.store_snapshot(SnapshotId(2, 1), data)
    await write_snapshot(raft_log, SnapshotId(1, 1), data)
    assert list_snapshots(disk, CLUSTER_METADATA_FOLDER) == [SnapshotId(2, 1)]


def test_a_damaged_header_behind_a_clean_stop_is_fetched_again() -> None:
    disk, batches = damaged()
    file = disk.open(LOG)
    file.pwrite(b"\x07", len(batches[0]) + 16)  # the magic byte of the second batch
    raft_log = open_log(disk)
    assert (raft_log.end_offset, raft_log.lost_records) == (1, True)


@pytest.mark.parametrize("offset", [8, 16], ids=["no length", "no magic"])
def test_a_sole_voter_with_a_damaged_header_refuses_to_start(offset: int) -> None:
    """What follows would be lost, and with it topics: no other voter has it."""
    disk, batches = damaged()
    disk.open(LOG).pwrite(bytes(4), len(batches[0]) + offset)
    before = disk.read(LOG)
    for _ in range(2):
        with pytest.raises(InvariantViolated, match="restore it from a copy"):
            open_log(disk, alone=True)
    assert disk.read(LOG) == before
    assert not disk.exists(f"{CLUSTER_METADATA_FOLDER}/{LOST_RECORDS}")


def test_a_sole_voter_cuts_what_a_crash_tore() -> None:
    disk, batches = damaged()
    disk.open(LOG).truncate(len(batches[0]) + 70)
    raft_log = open_log(disk, clean=False, alone=True)
    assert (raft_log.end_offset, raft_log.lost_records) == (1, False)


def damage_header(*, alone: bool = False) -> tuple[FaultyMemoryDisk, RaftLog]:
    """A log that is open, and whose second batch is damaged since; large ones, so that none is kept in memory."""
    disk = FaultyMemoryDisk()
    raft_log = open_log(disk, alone=alone)
    raft_log.append([bytes(20_000)], 1)
    at = disk.size(LOG)
    for _ in range(2):
        raft_log.append([bytes(20_000)], 1)
    raft_log.sync_now()
    disk.open(LOG).pwrite(b"\x07", at + 16)
    return disk, raft_log


def test_a_voter_that_meets_damage_ends_and_knows_it_at_the_next_start() -> None:
    disk, raft_log = damage_header()
    assert raft_log.read_until(0, 1, 3)[1] == 1
    for _ in range(2):
        with pytest.raises(InvariantViolated, match="cannot be read at offset 1"):
            raft_log.read(1, 1)
    raft_log.abandon()
    again = open_log(disk, clean=False)
    assert (again.end_offset, again.lost_records) == (1, True)


def test_a_sole_voter_refuses_who_asks_for_what_is_damaged() -> None:
    disk, raft_log = damage_header(alone=True)
    for _ in range(2):
        with pytest.raises(BrokerError) as refused:
            raft_log.read(1, 1)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    raft_log.abandon()
    assert not disk.exists(f"{CLUSTER_METADATA_FOLDER}/{LOST_RECORDS}")


async def test_what_is_dropped_is_renamed_first_and_removed_by_the_caller_or_after_the_next_start() -> None:
    disk = FaultyMemoryDisk()
    raft_log = open_log(disk)
    raft_log.append([b"value"] * 4, 1)
    raft_log.sync_now()
    data = encode_snapshot([b"value"], epoch=1, last_timestamp_ms=0, now_ms=0)
    for end_offset in (1, 2, 4):
        raft_log.store_snapshot(SnapshotId(end_offset, 1), data)
    raft_log.apply_retention(0, 4)
    assert list_snapshots(disk, CLUSTER_METADATA_FOLDER) == [SnapshotId(4, 1)]
    dropped = [name for name in disk.listdir(CLUSTER_METADATA_FOLDER) if name.endswith(".deleted")]
    assert len(dropped) == 2
    disk.kill()
    again = open_log(disk, clean=False)
    assert again.latest_snapshot == SnapshotId(4, 1)
    await disk.discard(*again.take_deleted())
    assert not [name for name in disk.listdir(CLUSTER_METADATA_FOLDER) if name.endswith(".deleted")]
    assert again.take_deleted() == []


async def install(raft_log: RaftLog, snapshot: SnapshotId, data: bytes | bytearray) -> None:
    """Replaces the log by a leader's snapshot, as the shell of a follower does."""

    def replace_log(voter_set: VoterSet) -> bool:
        raft_log.start_at_snapshot(snapshot, voter_set)
        return True

    writer = SnapshotWriter(ManualClock(), BrokerConfig({"node.id": "1"}), raft_log.disk, raft_log, lambda: 0)
    await writer.install(snapshot, bytearray(data), replace_log)


def replaced_log(disk: FaultyMemoryDisk) -> RaftLog:
    """A log with three batches of epochs 1 to 3, durable."""
    raft_log = open_log(disk)
    for epoch in (1, 2, 3):
        raft_log.append([b"old"], epoch)
    raft_log.sync_now()
    return raft_log


async def test_the_loop_goes_on_while_a_snapshot_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync waits until the loop has run other work; nothing syncs on the loop."""
    disk = FaultyMemoryDisk()
    raft_log = replaced_log(disk)
    syncs: list[tuple[int, bool]] = []
    go_on = asyncio.Event()

    async def slow(_files: object) -> None:
        syncs.append((raft_log.end_offset, raft_log.has_snapshot(SnapshotId(9, 5))))
        await go_on.wait()
        go_on.clear()

    disk.real.on_sync = slow
    for blocking in ("sync_now", "replace"):
        monkeypatch.setattr(disk, blocking, None)
    data = encode_snapshot([b"value"] * 3_000, epoch=5, last_timestamp_ms=0, now_ms=0)
    task = asyncio.ensure_future(install(raft_log, SnapshotId(9, 5), data))
    for seen in (
        [(3, False)],  # the snapshot has no name yet
        [(3, False), (3, True)],  # its name is not durable: the old log is whole
        [(3, False), (3, True), (9, True)],  # the log begins there: nothing is written before this sync ends
    ):
        await until(lambda seen=seen: len(syncs) == len(seen))  # type: ignore[misc]  # bound here
        assert (syncs, task.done()) == (seen, False)
        go_on.set()
    await task
    assert raft_log.synced_end_offset == 9
    assert raft_log.end == LogPoint(5, 9)


@pytest.mark.parametrize("torn", [False, True])
async def test_a_crash_while_a_snapshot_is_installed_keeps_the_old_log_or_the_snapshot(torn: bool) -> None:
    data = encode_snapshot([b"value"] * 3_000, epoch=5, last_timestamp_ms=0, now_ms=0)
    ends = set()
    calls = len(CHANGING) * 12
    for number in range(calls):
        disk = FaultyMemoryDisk()
        raft_log = replaced_log(disk)
        disk.fail("change", nth=number + 1)
        try:
            await install(raft_log, SnapshotId(9, 5), data)
        except OSError:
            pass
        else:
            assert number > 10
            break
        for seed in range(8 if torn else 1):
            after = copy.deepcopy(disk.real)
            after.crash(SeededRng(random.Random(seed)) if torn else None)
            again = open_log(after, clean=False)
            ends.add(again.end)
            if again.end == LogPoint(5, 9):
                assert list(again.snapshot_values()) == [b"value"] * 3_000
            assert again.append([b"next"], 6) == again.end_offset - 1
            again.sync_now()
            again.close()
            assert open_log(after).end.epoch == 6
    else:
        pytest.fail(f"the installation needs more than {calls} calls of the disk")
    assert ends == {LogPoint(3, 3), LogPoint(5, 9)}


def test_a_log_that_a_shorter_snapshot_replaced_is_synced_before_anything_is_written() -> None:
    """The node may become the leader before the installation ends."""
    disk = FaultyMemoryDisk()
    raft_log = replaced_log(disk)
    raft_log.store_snapshot(SnapshotId(2, 5), encode_snapshot([b"value"], epoch=5, last_timestamp_ms=0, now_ms=0))
    raft_log.start_at_snapshot(SnapshotId(2, 5), VoterSet())
    assert not raft_log.synced
    raft_log.append([b"next"], 6)
    disk.crash()
    assert open_log(disk, clean=False).end == LogPoint(5, 2), "the end of the old log is not back"


async def test_a_snapshot_is_installed_without_decoding_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 partitions that took 60 ms; they are decoded by the replay, in slices."""
    disk = FaultyMemoryDisk()
    raft_log = open_log(disk)
    data = encode_snapshot([b"value"] * 3_000, epoch=1, last_timestamp_ms=0, now_ms=0)
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "record_slices", None)
        await install(raft_log, SnapshotId(9, 1), data)
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        with pytest.raises(RemoteProtocolError):
            await install(raft_log, SnapshotId(10, 1), damaged)
    disk.crash()
    again = open_log(disk, clean=False)
    assert (again.start_offset, again.end_offset) == (9, 9)
    assert list(again.snapshot_values()) == [b"value"] * 3_000


def diverged(disk: FaultyMemoryDisk) -> RaftMachine:
    """A voter whose leader has told it that its log of three durable records diverges at offset 1."""
    machine = member(replaced_log(disk))
    machine.start(0)
    machine.on_begin_epoch(BeginEpoch(4, 2), 100)
    machine.take_outgoing()
    machine.on_timer(150)
    (fetches,) = machine.take_outgoing()
    machine.on_reply(2, fetches.request, FetchReply(ErrorCode.NONE, 2, 4, diverging=LogPoint(1, 1)), 200)
    assert machine.log.end == LogPoint(1, 1)
    return machine


def test_a_divergence_is_synced_off_the_loop_and_nothing_is_fetched_before(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyMemoryDisk()
    syncs: list[RaftLog] = []
    sync_now = RaftLog.sync_now

    def counted(raft_log: RaftLog) -> None:
        syncs.append(raft_log)
        sync_now(raft_log)

    with monkeypatch.context() as patched:
        patched.setattr(RaftLog, "sync_now", counted)
        machine = diverged(disk)
    raft_log = machine.log
    assert len(syncs) == 1, "that of the log before"
    assert machine.wants_sync
    assert machine.take_outgoing() == []
    machine.on_timer(210)
    assert machine.take_outgoing() == []
    disk.sync_now(raft_log.unsynced_files())
    raft_log.mark_synced(1)
    machine.on_synced(220)
    (fetches,) = machine.take_outgoing()
    assert isinstance(fetches.request, Fetch)
    assert fetches.request.log == LogPoint(1, 1)


@pytest.mark.parametrize("leads", [False, True])
def test_a_truncation_is_durable_before_anything_is_written_behind_it(leads: bool) -> None:
    """A power loss never leaves records that were truncated behind newer ones."""
    for seed in range(20):
        disk = FaultyMemoryDisk()
        raft_log = diverged(disk).log
        if leads:
            raft_log.append([b"new"], 5)
        else:
            batch = build_batch([NewRecord(None, b"new", 0)])
            stamp(batch, 0, 1, 5)
            raft_log.append_replicated(batch)
        disk.crash(SeededRng(random.Random(seed)))
        again = open_log(disk, clean=False)
        assert again.end in (LogPoint(1, 1), LogPoint(5, 2))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of files")
def test_a_new_metadata_log_is_its_owner_s_only(tmp_path: Path) -> None:
    """Others may read the data directory; the log has the keys of users, and settings in plain text."""
    disk = FileDisk(str(tmp_path))
    raft_log = RaftLog(disk, CONFIG, ManualClock(), clean=True)
    raft_log.append([b"secret"], 1)
    raft_log.close()
    disk.close()
    (folder,) = tmp_path.iterdir()
    assert folder.name == CLUSTER_METADATA_FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
