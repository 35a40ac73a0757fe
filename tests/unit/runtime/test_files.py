from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.errors import DirectoryInUse
from barnabas.runtime.files import FileDisk
from tests.support.storage.disk_contract import DiskContract


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    disk = FileDisk(str(tmp_path / "data"))
    yield disk
    disk.close()


class TestFileDisk(DiskContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[FileDisk]:
        disk = FileDisk(str(tmp_path / "data"))
        yield disk
        disk.close()


def test_few_descriptors_serve_many_files(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path), open_files_max=8)
    files = [disk.open(f"{n}", create=True) for n in range(50)]
    for round_ in range(3):
        for n, file in enumerate(files):
            file.pwrite(b"%02d" % n, round_ * 2)
    assert len([fd for fd in os.listdir("/proc/self/fd") if _points_into(fd, tmp_path)]) <= 8
    assert [file.pread(10, 0) for file in files] == [b"%02d" % n * 3 for n in range(50)]
    disk.close()
    assert not [fd for fd in os.listdir("/proc/self/fd") if _points_into(fd, tmp_path)]


def _points_into(fd: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder))
    except OSError:
        return False


async def test_a_sync_of_many_files_stays_within_the_limit_of_descriptors(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path), open_files_max=8)
    files = [disk.open(f"{n}", create=True) for n in range(200)]
    for file in files:
        file.pwrite(b"x", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        await disk.sync(files)
        disk.sync_now(files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not any(file.created for file in files)
    disk.close()


def test_a_handle_opens_no_file(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    disk.open("a", create=True).close()
    before = os.listdir("/proc/self/fd")
    handle = disk.handle("a")
    disk.sync_now([handle])
    assert os.listdir("/proc/self/fd") == before
    handle.close()
    disk.close()


async def test_a_descriptor_is_not_closed_under_a_sync(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path), open_files_max=2)
    files = [disk.open(f"{n}", create=True) for n in range(10)]
    syncing = asyncio.ensure_future(disk.sync(files))
    await asyncio.sleep(0)
    for file in files[:5]:
        file.close()
    others = [disk.open(f"other-{n}", create=True) for n in range(10)]
    await syncing
    for file in others:
        file.pwrite(b"x", 0)
    assert len([fd for fd in os.listdir("/proc/self/fd") if _points_into(fd, tmp_path)]) <= 2
    disk.close()


async def test_a_file_closed_while_its_sync_waits_counts_as_synced(disk: FileDisk) -> None:
    first, second = disk.open("1", create=True), disk.open("2", create=True)
    syncing = asyncio.ensure_future(disk.sync([first]))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(disk.sync([first, second]))
    await asyncio.sleep(0)
    second.close()
    await asyncio.gather(syncing, waiting)


async def test_a_failed_fsync_reaches_every_waiter(disk: FileDisk) -> None:
    good = disk.open("good", create=True)
    os.mkfifo(f"{disk.root}/fifo")  # fsync of a pipe is EINVAL
    bad = disk.open("fifo")
    outcomes = await asyncio.gather(disk.sync([bad]), disk.sync([bad, good]), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError, OSError]
    await disk.sync([good])
    with pytest.raises(OSError, match="Invalid argument"):
        disk.sync_now([bad])


async def test_a_folder_removed_meanwhile_has_nothing_to_sync(disk: FileDisk) -> None:
    disk.mkdir("t-0")
    files = [disk.open(f"t-0/{n}", create=True) for n in range(2)]
    files[1].close()
    await disk.discard("t-0")
    await disk.sync(files)
    disk.sync_now(files)


async def test_a_cancelled_waiter_leaves_the_others_served(disk: FileDisk) -> None:
    file = disk.open("a", create=True)
    first = asyncio.ensure_future(disk.sync([file]))
    second = asyncio.ensure_future(disk.sync([file]))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled() or first.done()


def test_another_process_is_kept_out_as_java_would_be(disk: FileDisk) -> None:
    code = (
        "import fcntl, sys\n"
        "f = open(sys.argv[1], 'r+b')\n"
        "try:\n    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError:\n    sys.exit(7)\n"
    )
    lock = disk.lock(".lock")
    argv = [sys.executable, "-c", code, f"{disk.root}/.lock"]
    assert subprocess.run(argv, check=False).returncode == 7
    lock.release()
    assert subprocess.run(argv, check=False).returncode == 0


def test_a_lock_held_by_another_process_is_refused_by_name(disk: FileDisk) -> None:
    code = (
        "import fcntl, sys\nf = open(sys.argv[1], 'w+b')\nfcntl.lockf(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, f"{disk.root}/.lock"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryInUse, match="another process"):
            disk.lock(".lock")
        holder.communicate(b"")
    disk.lock(".lock").release()


def test_a_large_write_and_read_are_whole(disk: FileDisk) -> None:
    data = os.urandom(5_000_000)
    file = disk.open("a", create=True)
    file.pwrite(memoryview(data), 3)
    assert file.pread(len(data) + 10, 3) == data


async def test_a_process_without_descriptors_goes_on_with_those_of_its_files(tmp_path: Path) -> None:
    """Whatever opens something finds room, as long as a file that is open can give its descriptor up."""
    disk = FileDisk(str(tmp_path), open_files_max=100)
    files = [disk.open(f"{n}", create=True) for n in range(20)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1, hard))
    others: list[int] = []

    def starve() -> None:
        """The files have every descriptor that the process may have."""
        for fd in others:
            os.close(fd)
        others.clear()
        for file in files:
            file.size()
        fill_up(others)

    try:
        starve()
        disk.mkdir("folder")
        disk.open("folder/new", create=True).pwrite(b"new", 0)
        starve()
        disk.replace("checkpoint", b"0\n")
        starve()
        assert disk.read("checkpoint") == b"0\n"
        starve()
        assert disk.listdir("folder") == ["new"]
        starve()
        await disk.sync(files)
        starve()
        disk.sync_now(files)
        starve()
        await disk.discard("folder")
        for file in files:
            file.close()
        fill_up(others)
        with pytest.raises(OSError, match="Too many open files"):  # now nothing is left to give up
            disk.listdir("")
    finally:
        for fd in others:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not disk.exists("folder")
    assert not any(file.created for file in files)
    disk.close()


def fill_up(descriptors: list[int]) -> None:
    """Takes every descriptor that the process may still have."""
    with contextlib.suppress(OSError):
        while True:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of files")
def test_a_new_data_directory_is_its_owner_s_only(tmp_path: Path) -> None:
    """Its metadata log has the keys of SCRAM users, and settings in plain text."""
    FileDisk(str(tmp_path / "parent" / "data")).close()
    assert stat.S_IMODE((tmp_path / "parent" / "data").stat().st_mode) == 0o700
    given = tmp_path / "given"
    given.mkdir(mode=0o750)
    FileDisk(str(given)).close()
    assert stat.S_IMODE(given.stat().st_mode) == 0o750, "one that exists is left as it is"
