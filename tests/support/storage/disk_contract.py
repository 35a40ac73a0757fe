"""What every Disk must do: one suite, run over the memory disk and the file disk."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from barnabas.errors import DirectoryInUse
from barnabas.ports import Disk


class DiskContract:
    """Subclasses give a `disk` fixture: an empty data directory."""

    def test_written_bytes_are_read_back_from_any_offset(self, disk: Disk) -> None:
        disk.mkdir("orders-0")
        file = disk.open("orders-0/a.log", create=True)
        file.pwrite(b"hello world", 0)
        file.pwrite(bytearray(b"W"), 6)
        file.pwrite(memoryview(b"xx!!")[2:], 11)
        assert file.pread(100, 0) == b"hello World!!"
        assert file.pread(5, 6) == b"World"
        assert file.pread(5, 13) == b""
        assert file.size() == disk.size("orders-0/a.log") == 13
        assert disk.read("orders-0/a.log") == b"hello World!!"
        assert file.path == "orders-0/a.log"

    def test_a_write_past_the_end_leaves_zeros_between(self, disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.pwrite(b"z", 4)
        assert file.pread(10, 0) == b"\0\0\0\0z"

    def test_truncate_cuts_and_extends(self, disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.pwrite(b"abcdef", 0)
        file.truncate(2)
        assert file.pread(10, 0) == b"ab"
        file.truncate(4)
        assert file.pread(10, 0) == b"ab\0\0"
        assert file.size() == 4

    def test_opening_what_is_missing_fails_unless_asked_to_create(self, disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open("a")
        with pytest.raises(FileNotFoundError):
            disk.open("no-folder/a", create=True)
        disk.open("a", create=True).pwrite(b"1", 0)
        assert disk.open("a", create=True).pread(5, 0) == b"1"
        assert disk.open("a").size() == 1

    async def test_a_handle_syncs_what_was_written_and_closed(self, disk: Disk) -> None:
        disk.mkdir("orders-0")
        file = disk.open("orders-0/a", create=True)
        file.pwrite(b"1", 0)
        file.close()
        handle = disk.handle("orders-0/a")
        await disk.sync([handle])
        disk.sync_now([handle])
        handle.close()
        disk.remove("orders-0/a")
        try:
            gone = disk.handle("orders-0/a")
        except FileNotFoundError:
            return
        await disk.sync([gone])
        disk.sync_now([gone])
        gone.close()

    def test_a_closed_file_refuses_and_closing_twice_is_harmless(self, disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.close()
        file.close()
        with pytest.raises(OSError, match="closed"):
            file.pwrite(b"1", 0)
        with pytest.raises(OSError, match="closed"):
            file.pread(1, 0)

    def test_folders_list_their_names_sorted_and_not_deeper(self, disk: Disk) -> None:
        assert disk.listdir("") == []
        disk.mkdir("b/c")
        disk.mkdir("b/c")
        disk.open("b/2", create=True)
        disk.open("b/1", create=True)
        disk.open("a", create=True)
        assert disk.listdir("") == ["a", "b"]
        assert disk.listdir("b") == ["1", "2", "c"]
        assert disk.listdir("b/c") == []
        assert disk.exists("b/c")
        assert disk.exists("b/1")
        assert not disk.exists("b/3")
        with pytest.raises(FileNotFoundError):
            disk.listdir("missing")

    def test_remove_takes_a_file_and_forgives_a_missing_one(self, disk: Disk) -> None:
        disk.open("a", create=True).close()
        disk.remove("a")
        disk.remove("a")
        assert disk.listdir("") == []
        for call in (disk.size, disk.read):
            with pytest.raises(FileNotFoundError):
                call("a")

    async def test_discard_takes_files_and_folders_with_all_below_and_nothing_beside(self, disk: Disk) -> None:
        disk.mkdir("t-1/deep")
        disk.mkdir("t-10")
        disk.open("t-1/deep/a", create=True).close()
        disk.open("t-10/a", create=True).close()
        disk.open("file", create=True).close()
        for _ in range(2):
            await disk.discard("t-1", "file", "missing")
        assert disk.listdir("") == ["t-10"]
        assert disk.listdir("t-10") == ["a"]

    def test_rename_replaces_files_and_moves_folders_whole(self, disk: Disk) -> None:
        disk.mkdir("t-0")
        disk.open("t-0/a", create=True).pwrite(b"new", 0)
        disk.open("t-0/b", create=True).pwrite(b"old", 0)
        disk.rename("t-0/a", "t-0/b")
        assert disk.read("t-0/b") == b"new"
        assert disk.listdir("t-0") == ["b"]
        disk.rename("t-0", "t-0.stray")
        assert disk.listdir("") == ["t-0.stray"]
        assert disk.read("t-0.stray/b") == b"new"
        with pytest.raises(FileNotFoundError):
            disk.rename("missing", "x")

    def test_a_name_has_255_bytes_at_the_most(self, disk: Disk) -> None:
        longest, too_long = "n" * 255, "n" * 256
        disk.mkdir(longest)
        calls: list[Callable[[], object]] = [
            lambda: disk.mkdir(too_long),
            lambda: disk.rename(longest, too_long),
            lambda: disk.replace(too_long, b""),
            lambda: disk.open(too_long, create=True),
            lambda: disk.open(f"{longest}/{too_long}", create=True),
        ]
        for call in calls:
            with pytest.raises(OSError, match="too long") as refused:
                call()
            assert refused.value.errno == errno.ENAMETOOLONG
        assert disk.listdir("") == [longest]

    def test_replace_writes_whole_files(self, disk: Disk) -> None:
        disk.replace("c", b"one")
        disk.replace("c", b"2")
        assert disk.read("c") == b"2"
        assert disk.listdir("") == ["c"]

    def test_a_lock_is_exclusive_until_released(self, disk: Disk) -> None:
        lock = disk.lock(".lock")
        with pytest.raises(DirectoryInUse, match="lock"):
            disk.lock(".lock")
        lock.release()
        disk.lock(".lock").release()
        assert disk.exists(".lock")

    async def test_sync_returns_once_everything_is_durable(self, disk: Disk) -> None:
        disk.mkdir("t-0")
        files = [disk.open(f"t-0/{n}", create=True) for n in range(3)]
        for file in files:
            file.pwrite(b"x" * 100, 0)
        await disk.sync([])
        await asyncio.gather(disk.sync(files), disk.sync(files[:1]), disk.sync([*files, *files]))
        disk.sync_now(files)
        assert [file.size() for file in files] == [100, 100, 100]

    def test_available_bytes_is_positive(self, disk: Disk) -> None:
        assert disk.available_bytes() > 0
