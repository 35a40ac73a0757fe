"""FaultyDisk is a Disk, over a memory disk and over files; its rules match the calls that they name."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.ports import File
from barnabas.runtime.files import FileDisk
from barnabas.testing.world.disks import FaultyDisk, FaultyMemoryDisk
from tests.support.storage.disk_contract import DiskContract


class TestFaultyMemoryDisk(DiskContract):
    @pytest.fixture(params=[False, True], ids=["free", "watched"])
    def disk(self, request: pytest.FixtureRequest) -> FaultyMemoryDisk:
        disk = FaultyMemoryDisk()
        if request.param:
            disk.watch("change")
        return disk


class TestFaultyFileDisk(DiskContract):
    @pytest.fixture(params=[False, True], ids=["free", "watched"])
    def disk(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultyDisk]:
        real = FileDisk(str(tmp_path / "data"))
        disk = FaultyDisk(real)
        if request.param:
            disk.watch("change")
        yield disk
        real.close()


def test_rules_match_the_right_calls_the_right_number_of_times() -> None:
    disk = FaultyMemoryDisk()
    a, b = disk.open("a.log", create=True), disk.open("b.index", create=True)
    disk.fail("pwrite", path="*.log*", nth=2, times=2, number=errno.ENOSPC)
    a.pwrite(b"1", 0)
    b.pwrite(b"1", 0)
    for _ in range(2):
        with pytest.raises(OSError, match="space") as raised:
            a.pwrite(b"2", 1)
        assert raised.value.errno == errno.ENOSPC
    a.pwrite(b"3", 1)
    assert disk.read("a.log") == b"13"

    disk.fail("pwrite", done="half")
    with pytest.raises(OSError, match="output error"):
        a.pwrite(b"wxyz", 2)
    assert disk.read("a.log") == b"13wx"

    disk.fail("sync", "create", times=None)
    for call in (lambda: disk.sync_now([a]), lambda: disk.open("c", create=True)):
        with pytest.raises(OSError, match="output error"):
            call()
    disk.heal()
    disk.sync_now([a])


def test_a_watch_counts_the_calls_that_change_something() -> None:
    disk = FaultyMemoryDisk()
    changes = disk.watch("change")
    file: File = disk.open("a", create=True)
    file.pwrite(b"1", 0)
    file.pread(1, 0)
    disk.read("a")
    disk.replace("b", b"")
    assert changes.hits == 3
