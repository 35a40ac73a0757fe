"""Process memory: freed memory that glibc keeps, and runs of the cyclic garbage collector."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from typing import Literal

_M_TRIM_THRESHOLD = -1  # numbers of <malloc.h>
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 16 * 1024 * 1024  # free memory that stays at the top of the heap: a few Fetch responses
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # only larger blocks get their own mapping; the highest value that glibc accepts


def keep_freed_memory() -> bool:
    """Sets glibc to keep up to KEPT_BYTES of freed memory. Returns whether it accepted that.

    Otherwise each large read causes page faults: 0.87 instead of 0.39 s of CPU per GB fetched, for 4 MB less.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


YOUNG_OBJECTS_MAX = 5_000  # visited in about a millisecond
THRESHOLDS = (700, 10, 2)  # a full collection visits about 3 x 11 x 700 new objects, in 3 ms
GROWTH_BLOCKS_MIN = 8_000_000  # of memory: about 600 MB
_blocks_max = GROWTH_BLOCKS_MIN  # allocated blocks above which everything is visited once more
_holding = 0  # calls of hold_collector without a release; several, because tests run several nodes in one process
_holding_lock = threading.Lock()  # the nodes of one process may run in separate threads


def freeze_survivors() -> None:
    """Freezes what a full collection leaves, so that the next one visits only newer objects (1 ms).

    A full collection visits every object that is not frozen: 130 ms with 1,000 partitions. Only frozen reference cycles
    stay, and the broker makes none (`tests/process/test_garbage.py`). After each growth by GROWTH_BLOCKS_MIN and to
    double the size, everything is visited once.
    """
    gc.freeze()
    gc.collect()  # visits nothing; CPython waits with the next one for a quarter of the objects that the last one left
    gc.set_threshold(*THRESHOLDS)
    if _freeze_after_collection not in gc.callbacks:
        gc.callbacks.append(_freeze_after_collection)


def _freeze_after_collection(phase: Literal["start", "stop"], info: dict[str, int]) -> None:
    global _blocks_max
    if phase == "start" or info["generation"] < 2:
        return
    blocks = sys.getallocatedblocks()
    if blocks <= _blocks_max:
        gc.freeze()
    else:
        gc.unfreeze()  # the next full collection visits everything
        _blocks_max = max(2 * blocks, blocks + GROWTH_BLOCKS_MIN)


def hold_collector() -> None:
    """Stops the collector, which would visit all objects of a large request, until as many `release_collector` calls."""
    global _holding
    with _holding_lock:
        _holding += 1
    gc.disable()


def release_collector() -> None:
    """Restarts the collector after the last `hold_collector`, and freezes."""
    global _holding
    with _holding_lock:
        _holding -= 1
        if _holding:
            return
    if gc.get_count()[0] > YOUNG_OBJECTS_MAX and _freeze_after_collection in gc.callbacks:
        gc.freeze()  # else the next young collection visits 99,000 elements of a request that waits, in 30 to 130 ms
    gc.enable()
