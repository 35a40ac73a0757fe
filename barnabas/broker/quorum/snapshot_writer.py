"""Writes a snapshot of the metadata log in slices, with its syncs off the loop.

Shell of `RaftLog`: it writes aside, syncs, and gives the file its name. Driven by: `Quorum.store_snapshot`.
Follows KIP-630: a snapshot has its name only when it is durable.
"""

from __future__ import annotations

import asyncio
from typing import Final

from barnabas.broker.quorum.raft_log import ASIDE, RaftLog
from barnabas.broker.quorum.snapshots import SnapshotId

__all__ = ["write_snapshot"]

WRITTEN_BYTES: Final = 1024 * 1024  # in one turn of the loop


async def write_snapshot(raft_log: RaftLog, snapshot: SnapshotId, data: bytes | bytearray) -> None:
    """As `RaftLog.store_snapshot`, without blocking. No effect if a newer one has been stored by then. Raises OSError."""
    disk, path = raft_log.disk, raft_log.snapshot_path(snapshot)
    aside = path + ASIDE
    disk.remove(aside)
    file = disk.open(aside, create=True)
    try:
        for position in range(0, len(data), WRITTEN_BYTES):
            file.pwrite(data[position : position + WRITTEN_BYTES], position)
            await asyncio.sleep(0)
        await disk.sync([file])
        if raft_log.latest_snapshot is not None and snapshot <= raft_log.latest_snapshot:
            disk.remove(aside)
            return
        disk.rename(aside, path)
    finally:
        file.close()
    renamed = disk.open(path)
    try:
        await disk.sync([renamed])  # also the folder, for the new name
    finally:
        renamed.close()
    raft_log.note_snapshot(snapshot, len(data))
