"""Memory of the process: how much of it the C library keeps, and when the cyclic garbage collector runs.

Freed memory: a broker that reads a megabyte per answer should not cause page faults for it each time.

glibc gives blocks above a threshold straight back to the kernel, so every large read costs its page faults again: measured on
CPython 3.11, 0.87 s of CPU per GB fetched instead of 0.39, for 4 MB more resident memory. Elsewhere than on glibc nothing is
changed.

The garbage collector: `hold_collector` keeps it from running while a large request is served in slices, because a collection visits
all objects of that request without a pause. `release_collector` calls them old without a visit: most of them are freed with
their request, by their reference counts. A full collection visits every object of the process: 130 ms with 1,000 partitions. In a
process that called `collect_by_growth` there is one only after it has grown by GROWTH_BLOCKS_MAX: closed connections leave about
a kilobyte of garbage in cycles.
"""

from __future__ import annotations

import ctypes
import gc
import sys

__all__ = ["collect_by_growth", "collect_if_grown", "hold_collector", "keep_freed_memory", "release_collector"]

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


YOUNG_OBJECTS_MAX = 5_000  # visited in about a millisecond
GROWTH_BLOCKS_MAX = 2_000_000  # of memory: about 150 MB
_blocks_max = 0  # allocated, at which a full collection is due; 0: not known yet
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
    if _holding:
        return
    if gc.get_count()[0] > YOUNG_OBJECTS_MAX:
        # Both calls only join lists. What was young is in the oldest generation then: the next young collection would have
        # visited 99,000 elements of a request that still waits for its answer, in 30 to 130 ms.
        gc.freeze()
        gc.unfreeze()
        collect_if_grown()
    gc.enable()


def collect_by_growth() -> None:
    """Full collections come by `collect_if_grown` alone from now on."""
    gc.set_threshold(*gc.get_threshold()[:2], 1_000_000_000)


def collect_if_grown() -> None:
    """Looks for garbage in cycles among what is old, where the process has grown since it was last looked for."""
    global _blocks_max
    blocks = sys.getallocatedblocks()
    if not _blocks_max:
        _blocks_max = blocks + GROWTH_BLOCKS_MAX
    elif blocks > _blocks_max:
        gc.collect()
        _blocks_max = sys.getallocatedblocks() + GROWTH_BLOCKS_MAX
