"""System calls on files and folders: sync and remove, many of them in parallel."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

U = TypeVar("U")

_OPEN_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
_PARALLEL_MIN = 16  # files in one call, from which on threads share the work
_PARALLEL_THREADS = 16
_PARALLEL_CHUNK = 8


def fsync(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone writes only to the drive's cache
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)  # it also flushes the size, without which the data could not be read
    else:
        os.fsync(fd)


def in_parallel(work: Callable[[U], None], targets: Sequence[U]) -> None:
    """Syncs or removes each target; many in several threads, whose changes a file system commits together."""
    if len(targets) < _PARALLEL_MIN:
        for target in targets:
            work(target)
        return

    def chunk(start: int) -> None:
        for target in targets[start : start + _PARALLEL_CHUNK]:
            work(target)

    with ThreadPoolExecutor(_PARALLEL_THREADS, thread_name_prefix="barnabas-files") as pool:
        for _ in pool.map(chunk, range(0, len(targets), _PARALLEL_CHUNK)):
            pass


def remove_if_there(full_path: str) -> None:
    """No error for a missing file."""
    try:
        os.unlink(full_path)
    except FileNotFoundError:
        pass


def discard(full_paths: Sequence[str]) -> None:
    """Removes files and whole folders; no error for missing ones."""
    for full_path in full_paths:
        try:
            os.unlink(full_path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):  # Linux and macOS raise these for a folder
            if not os.path.isdir(full_path):
                raise
            _discard_folder(full_path)


def _discard_folder(full_path: str) -> None:
    try:
        discard([f"{full_path}/{name}" for name in os.listdir(full_path)])
        os.rmdir(full_path)
    except FileNotFoundError:
        pass


def sync_target(target: int | str) -> None:
    """Syncs an open descriptor or a path; no error for a missing file."""
    if isinstance(target, int):
        fsync(target)
    else:
        _fsync_path(target)


def sync_folder_if_there(folder: str) -> None:
    """No error for a missing folder."""
    try:
        sync_folder(folder)
    except FileNotFoundError:
        pass  # the topic was deleted


def _fsync_path(full_path: str) -> None:
    try:
        fd = os.open(full_path, _OPEN_FLAGS)
    except FileNotFoundError:
        return
    try:
        fsync(fd)
    finally:
        os.close(fd)


def sync_folder(full_path: str) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(full_path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
