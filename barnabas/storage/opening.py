"""LogOpening: what is known of a partition's log before its folder is read.

Driven by: whoever opens a log (replicas, the metadata log, tools). Emits: nothing; the partition log and recovery read it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

__all__ = ["DamagedLog", "LogOpening"]


class DamagedLog(OSError):
    """A log is damaged, or ends too early, where everything was durable. Nothing was changed.

    An OSError, because the directory of such a log has failed: the disk lost what it had confirmed.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(errno.EIO, f"{path} is damaged after a clean stop: {what}", path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpening:
    """What is known of a log before its folder is read.

    Attributes:
        now_ms: the time: producers may have expired.
        topic_id: 16 bytes: whose folder it must be; None takes the id found there.
        clean: the log was stopped cleanly, so files are trusted, and damage, or a log that ends below `recovery_point`, raises
            DamagedLog. Otherwise what lies beyond `recovery_point` is read and checked, and the log is cut before damage: a crash may
            have torn the last writes.
        recovery_point: everything below this offset was durable, as the checkpoint has it.
        log_start_offset: as the checkpoint has it: the log may not show anything below.
        producers_complete_to: as the checkpoint has it, 0 if it has none: `ProducerSnapshots.complete_to`.
        new: where the folder is missing, no producer can have written to this partition before.
    """

    now_ms: int
    topic_id: bytes | None = None
    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    producers_complete_to: int = 0
    new: bool = True
