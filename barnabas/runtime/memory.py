"""Memory of the process: how much freed memory the C library keeps, and when the cyclic garbage collector runs.

Freed memory: glibc returns freed blocks above a threshold to the kernel at once, so each large read causes page faults again.
`keep_freed_memory` raises the thresholds. Measured on CPython 3.11: 0.39 s of CPU per GB fetched instead of 0.87 s, for 4 MB more
resident memory. Without glibc nothing is changed.

The garbage collector: a full collection visits every object that is not frozen (130 ms with 1,000 partitions, 480 ms with 10,000
topics), and stops the loop for that time. `freeze_survivors` freezes what a full collection leaves, so that the next one visits only
what was made since: about a millisecond. Reference counts still free frozen objects; only frozen reference cycles stay. The broker
makes none: a closed connection, a served request and a deleted partition leave nothing to the collector
(`tests/process/test_garbage.py`). In case one is made all the same, everything is visited once after each growth by GROWTH_BLOCKS_MIN
and to double the size. `hold_collector` stops the collector while a large request is served in slices, because a young
collection visits all objects of that request without a pause; `release_collector` freezes them.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from typing import Literal

_M_TRIM_THRESHOLD = -1  # numbers of <malloc.h>
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 16 * 1024 * 1024  # free memory that stays at the top of the heap: a few Fetch answers
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # only larger blocks get their own mapping; the highest value that glibc accepts


def keep_freed_memory() -> bool:
    """Sets glibc to keep up to KEPT_BYTES of freed memory. Returns whether a glibc was found and accepted it."""
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
_holding_lock = threading.Lock()  # the nodes of one process may run in threads of their own


def freeze_survivors() -> None:
    """From now on a full collection visits only the objects that were made since the last one."""
    gc.freeze()
    gc.collect()  # visits nothing; CPython waits with the next one for a quarter of what the last one left
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
    """Stops the cyclic collector until each call of this has its call of `release_collector`."""
    global _holding
    with _holding_lock:
        _holding += 1
    gc.disable()


def release_collector() -> None:
    """Starts the collector again when every `hold_collector` has been released."""
    global _holding
    with _holding_lock:
        _holding -= 1
        if _holding:
            return
    if gc.get_count()[0] > YOUNG_OBJECTS_MAX and _freeze_after_collection in gc.callbacks:
        gc.freeze()  # else the next young collection visits 99,000 elements of a request that waits, in 30 to 130 ms
    gc.enable()
