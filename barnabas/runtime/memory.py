"""Memory of the process: how much of it the C library keeps, and when the cyclic garbage collector runs.

Freed memory: a broker that reads a megabyte per answer should not cause page faults for it each time.

glibc gives blocks above a threshold straight back to the kernel, so every large read costs its page faults again: measured on
CPython 3.11, 0.87 s of CPU per GB fetched instead of 0.39, for 4 MB more resident memory. Elsewhere than on glibc nothing is
changed.

The garbage collector: `hold_collector` keeps it from running while a large request is served in slices, because a collection visits
all objects of that request without a pause.
"""

from __future__ import annotations

import ctypes
import gc
import sys

__all__ = ["hold_collector", "keep_freed_memory", "release_collector"]

_M_TRIM_THRESHOLD = -1  # numbers of <malloc.h>
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 16 * 1024 * 1024  # free memory at the top of the heap that stays: a few answers to Fetch
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # only larger blocks are mapped on their own; the highest value glibc takes


def keep_freed_memory() -> bool:
    """Tells glibc to keep what is freed, up to KEPT_BYTES. Returns whether there was a glibc that took it."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


_holding = 0  # how many hold the collector now: nodes in one process are several in tests


def hold_collector() -> None:
    """Keeps the cyclic collector from running, until `release_collector` is called as often as this."""
    global _holding
    _holding += 1
    gc.disable()


def release_collector() -> None:
    """Lets the collector run again when its last holder has released it."""
    global _holding
    _holding -= 1
    if _holding == 0:
        gc.enable()
