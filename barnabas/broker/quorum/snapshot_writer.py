"""SnapshotWriter: decides when a snapshot of the metadata log is due, encodes it in slices and syncs it off the loop (KIP-630)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quorum.core.raft_log import ASIDE, RaftLog
from barnabas.broker.quorum.core.snapshots import SnapshotId, check_snapshot_in_slices, encode_snapshot_in_slices
from barnabas.broker.quorum.core.voters import VoterSet
from barnabas.ports import Clock, Disk
from barnabas.work import UNITS_PER_SLICE, Work

WRITTEN_BYTES: Final = 1024 * 1024  # in one turn of the loop
SNAPSHOT_FROM_BYTES: Final = 1024 * 1024  # of records: their replay takes 0.3 s of CPU
SNAPSHOT_FROM_FACTOR: Final = 4  # times the newest snapshot


class SnapshotWriter:
    """The snapshots of one open log, also those fetched from the leader. `high_watermark` returns None once the quorum has ended."""

    def __init__(
        self,
        clock: Clock,
        config: BrokerConfig,
        disk: Disk,
        raft_log: RaftLog,
        high_watermark: Callable[[], int | None],
    ) -> None:
        self._clock = clock
        self._config = config
        self._disk = disk
        self._log = raft_log
        self._high_watermark = high_watermark
        self._written_ms = clock.now_ms()  # of the last snapshot, or the opening of the log
        self._storing = asyncio.Lock()  # one snapshot at a time: retention counts on the log of each

    def due(self) -> bool:
        """Whether enough was appended, or enough time has passed, since the last snapshot.

        Each start replays everything after the snapshot. So a multiple of the snapshot's size is enough, also below
        metadata.log.max.record.bytes.between.snapshots: a restart of a sole node adds two records for each of its partitions.
        """
        config = self._config
        early = max(SNAPSHOT_FROM_BYTES, SNAPSHOT_FROM_FACTOR * self._log.snapshot_bytes)
        if self._log.appended_bytes >= min(early, config.get_int("metadata.log.max.record.bytes.between.snapshots")):
            return True
        interval_ms = config.get_int("metadata.log.max.snapshot.interval.ms")
        return 0 < interval_ms <= self._clock.now_ms() - self._written_ms and self._log.appended_bytes > 0

    def encode(self, values: Iterable[bytes], epoch: int, last_timestamp_ms: int) -> Work:
        """Returns a snapshot of the committed records `values`, whose last has this epoch and timestamp."""
        return encode_snapshot_in_slices(
            values,
            epoch=epoch,
            last_timestamp_ms=last_timestamp_ms,
            now_ms=self._clock.now_ms(),
            control=self._log.voter_set.control_records(),
        )

    async def store(self, snapshot: SnapshotId, data: bytes | bytearray) -> None:
        """Writes `encode`'s bytes durably, then drops snapshots by metadata.max.retention.*. Syncs off the loop. Raises OSError."""
        async with self._storing:
            await write_snapshot(self._log, snapshot, data)
            high_watermark = self._high_watermark()
            if high_watermark is None:
                return
            self._written_ms = self._clock.now_ms()
            limits = [self._config.get_int(f"metadata.max.retention.{unit}") for unit in ("bytes", "ms")]
            self._log.apply_retention(limits[0], high_watermark, limits[1])
        await self._disk.discard(*self._log.take_deleted())

    async def install(self, snapshot: SnapshotId, data: bytearray, replace_log: Callable[[VoterSet], bool]) -> None:
        """Makes a snapshot of the quorum's leader durable, then the log that begins there. Syncs off the loop.

        `replace_log` begins the log at the end of the durable snapshot, with its voters; False if it is no longer wanted. Raises
        RemoteProtocolError for a damaged snapshot, which changes nothing, and OSError.
        """
        voter_set = VoterSet()
        await _in_turns(check_snapshot_in_slices(data, voter_set.take))  # the replay decodes the records
        raft_log = self._log
        async with self._storing:
            await write_snapshot(raft_log, snapshot, data)
            if self._high_watermark() is None or not replace_log(voter_set):
                return
            generation, end_offset = raft_log.generation, raft_log.end_offset
            await self._disk.sync(raft_log.unsynced_files())
            if self._high_watermark() is None or generation != raft_log.generation:
                return
            raft_log.mark_synced(end_offset)
        await self._disk.discard(*raft_log.take_deleted())


async def _in_turns(work: Work) -> None:
    """Runs work without C code, one slice in each turn of the loop."""
    units = 0
    for step in work:
        units += step if isinstance(step, int) else UNITS_PER_SLICE
        if units >= UNITS_PER_SLICE:
            units = 0
            await asyncio.sleep(0)


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
