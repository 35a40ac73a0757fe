"""LogOpening: the facts about a partition's log that its owner knows before the folder is read."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from barnabas.storage.checkpoints import LogSize


class DamagedLog(OSError):
    """A log is damaged or ends too early, although all of it was durable. Nothing was changed.

    It is an OSError, because the log directory has failed: the disk lost data that it had confirmed.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(errno.EIO, f"{path} is damaged after a clean stop: {what}", path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpening:
    """The facts about a log that are known before its folder is read.

    Attributes:
        now_ms: the present time, by which producers expire.
        topic_id: 16 bytes: the topic that must own the folder; None accepts the id in the folder.
        clean: the log was stopped cleanly. Then files are trusted, and damage, or a log that ends below `recovery_point`, raises
            DamagedLog. Otherwise everything above `recovery_point` is read and checked, and the log is truncated before damage: a
            crash may have torn the last writes.
        recovery_point: from the checkpoint: everything below this offset was durable.
        log_start_offset: from the checkpoint: readers get nothing below it.
        producers_complete_to: from the checkpoint, 0 if it has none: `ProducerSnapshots.complete_to`.
        size: of the log at the clean stop, if known. Other .log files raise DamagedLog; other .txnindex files are rebuilt.
        new: if the folder is missing, no producer can have written to this partition before.
        private: if the folder is missing, only the owner of the process may read the new one.
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
