from __future__ import annotations

import asyncio
import errno

import pytest

from barnabas.ports import SECTOR_SIZE
from barnabas.storage.disk import MemoryDisk
from tests.support.rng import FixedRng, SeededRng
from tests.support.storage.disk_contract import DiskContract


class TestMemoryDisk(DiskContract):
    @pytest.fixture
    def disk(self) -> MemoryDisk:
        return MemoryDisk()


def test_a_crash_without_draws_keeps_exactly_what_was_synced() -> None:
    disk = MemoryDisk()
    file = disk.open("a", create=True)
    file.pwrite(b"kept", 0)
    disk.sync_now([file])
    file.pwrite(b"lost", 4)
    disk.open("b", create=True)
    disk.crash()
    assert disk.listdir("") == ["a"]
    assert disk.read("a") == b"kept"
    with pytest.raises(OSError, match="killed") as raised:
        file.pwrite(b"late", 0)
    assert raised.value.errno == errno.EIO
    assert disk.open("a").size() == 4


def test_a_kill_keeps_everything_but_handles_and_locks() -> None:
    disk = MemoryDisk()
    file = disk.open("a", create=True)
    file.pwrite(b"page cache", 0)
    lock = disk.lock(".lock")
    disk.kill()
    assert disk.read("a") == b"page cache"
    again = disk.lock(".lock")
    lock.release()  # of a dead process: must not free the new holder's
    assert ".lock" in disk.locks
    again.release()
    with pytest.raises(OSError, match="killed"):
        file.pread(1, 0)


def test_torn_writes_end_at_a_sector_and_lost_ones_leave_zeros() -> None:
    disk = MemoryDisk()
    file = disk.open("a", create=True)
    disk.sync_now([file])
    file.pwrite(b"a" * (3 * SECTOR_SIZE), 0)
    disk.crash(FixedRng(1))
    assert disk.read("a") == b"a" * (2 * SECTOR_SIZE)

    seen = set()
    for seed in range(60):
        disk = MemoryDisk()
        file = disk.open("a", create=True)
        disk.sync_now([file])
        file.pwrite(b"a" * 10, 0)
        file.pwrite(b"b" * 10, 10)
        disk.crash(SeededRng(seed))
        seen.add(disk.read("a"))
    assert {b"", b"a" * 10, b"\0" * 10 + b"b" * 10, b"a" * 10 + b"b" * 10} <= seen


def test_names_are_lost_in_order_and_a_sync_commits_those_before_it() -> None:
    for seed in range(30):
        disk = MemoryDisk()
        first = disk.open("1", create=True)
        disk.sync_now([first])
        disk.rename("1", "one")
        disk.mkdir("t")
        disk.open("t/2", create=True)
        disk.remove("one")
        disk.crash(SeededRng(seed))
        assert (disk.exists("1"), disk.exists("one"), disk.exists("t"), disk.exists("t/2")) in [
            (True, False, False, False),
            (False, True, False, False),
            (False, True, True, False),
            (False, True, True, True),
            (False, False, True, True),
        ]


def test_replace_is_durable_when_it_returns() -> None:
    disk = MemoryDisk()
    disk.mkdir("t")
    disk.replace("t/c", b"1")
    disk.crash()
    assert disk.read("t/c") == b"1"


async def test_a_sync_covers_only_what_was_written_before_it() -> None:
    disk = MemoryDisk()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_files: object) -> None:
        reached.set()
        await go_on.wait()

    disk.on_sync = slow
    file = disk.open("a", create=True)
    file.pwrite(b"before", 0)
    syncing = asyncio.ensure_future(disk.sync([file]))
    await reached.wait()
    file.pwrite(b"after", 6)
    go_on.set()
    await syncing
    disk.crash()
    assert disk.read("a") == b"before"


async def test_a_crash_during_a_sync_fails_it_and_nothing_became_durable() -> None:
    disk = MemoryDisk()
    go_on = asyncio.Event()

    async def slow(_files: object) -> None:
        await go_on.wait()

    disk.on_sync = slow
    file = disk.open("a", create=True)
    file.pwrite(b"x", 0)
    syncing = asyncio.ensure_future(disk.sync([file]))
    await asyncio.sleep(0)
    disk.crash()
    go_on.set()
    with pytest.raises(OSError, match="killed"):
        await syncing
    assert disk.listdir("") == []
