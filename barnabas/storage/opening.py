"""LogOpening: facts about a partition's log that its owner knows before the folder is read."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from barnabas.storage.checkpoints import LogSize


class DamagedLog(OSError):
    """A log is damaged or too short although all of it was durable: an OSError, as the disk lost confirmed data."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(errno.EIO, f"{path} is damaged after a clean stop: {what}", path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpening:
    """Known facts about a log before its folder is read.

    Attributes:
        now_ms: present time, by which producers expire.
        topic_id: 16 bytes of the owner; None accepts the id in the folder.
        clean: files are trusted, and damage or an end below `recovery_point` raises DamagedLog. Otherwise everything
            above `recovery_point` is checked, and the log is truncated at the first damage.
        recovery_point, log_start_offset, producers_complete_to: from the checkpoints.
        size: at the clean stop, if known. Other .log files raise DamagedLog; other .txnindex files are rebuilt.
        new: if the folder is missing, no producer can have written to this partition before.
        private: a new folder is readable only by the owner of the process.
    """

    now_ms: int
    topic_id: bytes | None = None
    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    producers_complete_to: int = 0
    size: LogSize | None = None
    new: bool = True
    private: bool = False
