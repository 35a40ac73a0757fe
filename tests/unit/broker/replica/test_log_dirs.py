"""Where replicas lie among several log directories, and what an I/O error in one of them does."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from barnabas.broker.replica.log_dir import NO_OFFSETS, CheckpointedOffsets, LogDirectory
from barnabas.broker.replica.log_dirs import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, LogDirectories
from barnabas.broker.scheduling.slices import advance
from barnabas.storage import checkpoints
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from barnabas.work import finished

A, B, C = (bytes([at]) * 16 for at in (1, 2, 3))


@dataclass(eq=False)
class FakeReplica:
    """What a directory reads of a replica."""

    topic: str
    partition: int
    log: PartitionLog
    high_watermark: int = 0


class DirectoriesBench:
    """Three directories without a node."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.failed: list[LogDirectory] = []
        self.disks = [FaultyMemoryDisk(f"/{name}") for name in "abc"]
        self.dirs = [self._directory(disk) for disk in self.disks]
        for directory, directory_id in zip(self.dirs, (A, B, C), strict=True):
            directory.directory_id = directory_id
        self.all = LogDirectories(self.dirs)
        self.aside: list[tuple[str, str]] = []

    def _directory(self, disk: FaultyMemoryDisk) -> LogDirectory:
        def start(task: Coroutine[Any, Any, None], name: str) -> None:
            assert name == "removal", "no other task is needed here"
            with pytest.raises(StopIteration):  # nothing in it waits
                task.send(None)

        return LogDirectory(disk, soon=self.soon.append, start=start, on_failure=self.failed.append)

    def folder(self, at: int, name: str) -> None:
        self.disks[at].mkdir(name)
        self.disks[at].replace(f"{name}/partition.metadata", b"")

    def find(self, assigned: dict[tuple[str, int], bytes]) -> None:
        self.all.find(assigned.get, lambda directory, folder: self.aside.append((directory.disk.root, folder)))

    def end_of_wake_up(self) -> None:
        callbacks, self.soon[:] = self.soon[:], []
        for callback in callbacks:
            callback()

    def home(self, name: str, number: int, assigned: bytes = UNASSIGNED_DIRECTORY) -> str | None:
        found = self.all.home_of((name, number), assigned)
        return None if found is None else found.disk.root


@pytest.fixture
def bench() -> DirectoriesBench:
    return DirectoriesBench()


def test_a_replica_lies_where_its_folder_is(bench: DirectoriesBench) -> None:
    bench.folder(1, "t-0")
    bench.folder(2, "t-1")
    bench.find({("t", 0): C, ("t", 1): UNASSIGNED_DIRECTORY})
    assert (bench.home("t", 0, C), bench.home("t", 1)) == ("/b", "/c")
    assert bench.aside == []


def test_a_new_one_goes_where_the_metadata_says_else_where_the_fewest_are(bench: DirectoriesBench) -> None:
    bench.find({})
    assert bench.home("t", 0, B) == "/b"
    for directory, count in zip(bench.dirs, (2, 1, 1), strict=True):
        directory.replicas = dict.fromkeys(range(count))  # type: ignore[arg-type]  # only their number counts
    assert bench.home("t", 1) == "/b", "the first of those with the fewest"
    bench.dirs[1].replicas.clear()
    assert bench.home("t", 2) == "/b"
    assert bench.home("t", 1) == "/b", "once chosen it stays"
    bench.all.forget(("t", 1))
    assert bench.home("t", 1, A) == "/a"


def test_folders_of_no_partition_are_set_aside(bench: DirectoriesBench) -> None:
    bench.folder(0, "gone-0")
    bench.folder(1, "t-0")
    bench.disks[1].mkdir("not.ours-0")
    bench.disks[1].mkdir("t-1.abc-delete")
    bench.find({("t", 0): B})
    assert bench.aside == [("/a", "gone-0")]
    assert bench.disks[1].listdir("") == ["not.ours-0", "t-0"]


@pytest.mark.parametrize(("assigned", "kept", "aside"), [(C, "/c", "/b"), (B, "/b", "/c"), (A, "/b", "/c")])
def test_of_two_folders_the_assigned_one_counts(
    bench: DirectoriesBench, assigned: bytes, kept: str, aside: str
) -> None:
    bench.folder(1, "t-0")
    bench.folder(2, "t-0")
    bench.find({("t", 0): assigned})
    assert bench.home("t", 0, assigned) == kept
    assert bench.aside == [(aside, "t-0")]


def test_a_failed_directory_is_told_once_at_the_end_of_the_wake_up(
    bench: DirectoriesBench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        bench.dirs[1].fail(OSError(errno.ENOSPC, "No space left on device"))
        bench.dirs[1].fail(OSError(errno.EIO, "Input/output error"))
    assert bench.failed == []
    bench.end_of_wake_up()
    assert bench.failed == [bench.dirs[1]]
    assert str(bench.dirs[1].failure) == "[Errno 28] No space left on device: '/b'"
    assert len(caplog.records) == 1
    assert (bench.all.online_ids(), bench.all.offline_ids()) == ([A, C], [B])


def test_what_lies_in_a_failed_directory_is_not_made_anew_elsewhere(bench: DirectoriesBench) -> None:
    bench.folder(1, "t-0")
    bench.find({("t", 0): B})
    bench.dirs[1].fail(OSError(errno.EIO, "Input/output error"))
    assert bench.home("t", 0, B) is None
    assert bench.home("t", 1, B) is None
    assert bench.home("t", 2, LOST_DIRECTORY) is None, "it may be the one that failed"
    assert bench.home("t", 3, bytes(range(16))) is None
    assert bench.home("t", 4) == "/a", "a new one may go elsewhere"


def test_with_every_directory_there_what_is_lost_is_made_anew(bench: DirectoriesBench) -> None:
    bench.find({})
    assert bench.home("t", 0, LOST_DIRECTORY) == "/a"
    assert bench.home("t", 1, bytes(range(16))) == "/a"


def test_a_directory_that_cannot_be_read_at_the_start_is_offline(bench: DirectoriesBench) -> None:
    bench.disks[2].fail("listdir", times=None)
    bench.folder(1, "t-0")
    bench.find({("t", 0): B})
    assert not bench.dirs[2].online
    assert bench.home("t", 0, B) == "/b"
    bench.disks[0].fail("listdir", times=None)
    with pytest.raises(OSError, match="Input"):
        bench.find({})


def test_offsets_are_those_of_the_directory(bench: DirectoriesBench) -> None:
    for disk, offset in zip(bench.disks, (1, 2, 3), strict=True):
        checkpoints.write_offsets(disk, checkpoints.REPLICATION_OFFSET_CHECKPOINT, {("t", offset): 10 * offset})
        checkpoints.write_offsets(disk, checkpoints.RECOVERY_POINT_CHECKPOINT, {("t", offset): offset})
        checkpoints.write_offsets(disk, checkpoints.CLEANER_OFFSET_CHECKPOINT, {("t", offset): 2 * offset})
        checkpoints.write_offsets(disk, checkpoints.PRODUCER_STATE_CHECKPOINT, {("t", offset): 3 * offset})
    bench.find({})
    assert bench.dirs[1].take_offsets(("t", 2)) == CheckpointedOffsets(2, 0, 20, 4, 6)
    assert bench.dirs[1].take_offsets(("t", 2)) == NO_OFFSETS, "a topic of the same name must not inherit them"
    assert bench.dirs[1].take_offsets(("t", 1)) == NO_OFFSETS


def test_a_checkpoint_in_slices_is_of_the_time_of_each_visit_and_void_where_a_point_was_lowered(
    bench: DirectoriesBench,
) -> None:
    directory = bench.dirs[0]
    bench.find({})
    logs = [
        PartitionLog.open(directory.disk, f"t-{number}", LogConfig(), LogOpening(now_ms=0, topic_id=bytes(16)))
        for number in range(1_000)
    ]
    for number, each in enumerate(logs):
        each.recovery_point = 7
        directory.replicas[FakeReplica("t", number, each)] = None  # type: ignore[index]  # what is read of a replica
    work = directory.checkpoints_in_slices()
    assert advance(work) is work, "1,000 partitions take more than one turn"
    for each in logs[-2:]:
        each.recovery_point = 9
    lowered = directory.lowered
    logs[0].recovery_point = 3
    asyncio.run(directory.sync_recovered({("t", 0): logs[0]}))
    assert directory.lowered > lowered, "the file of this collection says 7, and must not be written"
    files = finished(work)[checkpoints.RECOVERY_POINT_CHECKPOINT].decode().split("\n")
    assert files[:3] == ["0", "1000", "t 0 7"]
    assert files[-3:-1] == ["t 998 9", "t 999 9"]
    assert b"t 0 3\n" in directory.disk.read(checkpoints.RECOVERY_POINT_CHECKPOINT)


async def test_recovery_points_are_lowered_off_the_loop(
    bench: DirectoriesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of the disk blocks for a sync."""
    directory = bench.dirs[0]
    bench.find({})
    opened = PartitionLog.open(directory.disk, "t-0", LogConfig(), LogOpening(now_ms=0, topic_id=bytes(16)))
    directory.replicas[FakeReplica("t", 0, opened)] = None  # type: ignore[index]  # what is read of a replica
    opened.recovery_point = 7
    directory.checkpoints()
    opened.recovery_point = 3
    monkeypatch.setattr(directory.disk, "replace", None)
    monkeypatch.setattr(directory.disk, "sync_now", None)
    await directory.sync_recovered({("t", 0): opened})
    assert b"t 0 3\n" in directory.disk.read(checkpoints.RECOVERY_POINT_CHECKPOINT)


async def test_recovery_points_that_are_lowered_at_the_same_time_are_all_in_the_file(bench: DirectoriesBench) -> None:
    """Opened logs and replicas are synced by different tasks."""
    directory = bench.dirs[0]
    bench.find({})
    logs = {
        ("t", number): PartitionLog.open(
            directory.disk, f"t-{number}", LogConfig(), LogOpening(now_ms=0, topic_id=bytes(16))
        )
        for number in range(2)
    }
    for (topic, number), opened in logs.items():
        directory.replicas[FakeReplica(topic, number, opened)] = None  # type: ignore[index]  # what is read of a replica
        opened.recovery_point = 7
    directory.checkpoints()

    async def slowly(_files: object) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    bench.disks[0].real.on_sync = slowly

    async def lower(name: tuple[str, int]) -> None:
        logs[name].recovery_point = 3
        await directory.sync_recovered({name: logs[name]})

    first = asyncio.create_task(lower(("t", 0)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.gather(first, lower(("t", 1)))
    lines = directory.disk.read(checkpoints.RECOVERY_POINT_CHECKPOINT).decode().split("\n")
    assert lines[2:4] == ["t 0 3", "t 1 3"]


def test_checkpoints_keep_what_could_not_be_opened(bench: DirectoriesBench) -> None:
    directory = bench.dirs[0]
    checkpoints.write_offsets(directory.disk, checkpoints.REPLICATION_OFFSET_CHECKPOINT, {("t", 0): 7})
    bench.find({})
    directory.unopened["t", 0] = directory.take_offsets(("t", 0))
    files = directory.checkpoints()
    assert files[checkpoints.REPLICATION_OFFSET_CHECKPOINT] == b"0\n1\nt 0 7\n"
    assert directory.checkpoints(only_high_watermarks=True) == {}, "nothing moved"
    directory.close(5)
    assert not directory.disk.exists(checkpoints.CLEAN_SHUTDOWN_FILE)
