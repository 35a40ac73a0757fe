"""A disk without room, for a while."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_disk() -> Iterator[None]:
    """No file may grow beyond 32 KiB: the same end as a full disk, which needs no file system of its own to try.

    For the calls that write, and no longer: pytest's own output may go to a file, which may not grow either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
