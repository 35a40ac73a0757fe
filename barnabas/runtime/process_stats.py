"""Process statistics: CPU time, memory, open files, disk bytes."""

from __future__ import annotations

import os
import time
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_START_FIELD: Final = 19  # of /proc/self/stat, counted after the name: start time in ticks after the boot


def thread_cpu_s() -> float:
    """Of the calling thread, in seconds."""
    return time.thread_time()


def process_cpu_s() -> float:
    """Of all threads, user and system, in seconds."""
    return time.process_time()


def _memory_pages() -> list[str]:
    try:
        with open("/proc/self/statm") as file:
            return file.read().split()
    except OSError:
        return []


def virtual_bytes() -> int | None:
    pages = _memory_pages()
    return int(pages[0]) * _PAGE if pages else None


def resident_bytes() -> int:
    """Resident memory; the maximum so far where the system reports no more, and 0 on Windows."""
    pages = _memory_pages()
    if pages:
        return int(pages[1]) * _PAGE
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_descriptors() -> int | None:
    """Open files and connections. Linux 6.2 and later count them in the directory's size; before, they are listed."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def disk_bytes() -> tuple[int, int] | None:
    """Bytes read from and written to disks, as Kafka's LinuxIoMetricsCollector reads them."""
    try:
        with open("/proc/self/io") as file:
            found = dict(line.split(": ") for line in file.read().splitlines())
        return int(found["read_bytes"]), int(found["write_bytes"])
    except (OSError, KeyError, ValueError):
        return None


def started_at_s() -> float | None:
    """Start of the process, in seconds since the epoch."""
    try:
        with open("/proc/self/stat") as file:
            ticks = float(file.read().rpartition(")")[2].split()[_START_FIELD])
        with open("/proc/stat") as file:
            booted = next(float(line.split()[1]) for line in file if line.startswith("btime"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return booted + ticks / os.sysconf("SC_CLK_TCK")
