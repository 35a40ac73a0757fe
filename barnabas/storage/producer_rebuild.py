"""ProducerRebuild: the producer state of a log at an offset, from its snapshots, saved states and batches.

Driven by: recovery, at a start; the partition log, after a cut. Emits: a ProducerState; damaged snapshot files are removed.

Invariants: a state is called complete (`ProducerState.complete`) only if it holds every producer that ever wrote to the log. A log
that begins at offset 0 and is read from there without a gap tells of all of them. A snapshot does up to `complete_to`. Neither does
where committed records were lost: the file LOST_PRODUCERS in the log's folder says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.limits import RETAINED_BATCHES
from barnabas.ports import Disk
from barnabas.protocol.records import ATTRIBUTE_CONTROL
from barnabas.storage.log_config import LogConfig
from barnabas.storage.producers import MalformedSnapshot, ProducerState, RetainedBatch
from barnabas.storage.replay import StoredBatch, replay, walk
from barnabas.storage.saved_state import SavedState
from barnabas.storage.segment import Segment, file_name

__all__ = ["LOST_PRODUCERS", "SNAPSHOT_SUFFIX", "ProducerRebuild"]

SNAPSHOT_SUFFIX = ".snapshot"
LOST_PRODUCERS = "lost-producers"  # a file in the folder of a log that may lack producers of records that were lost
_STEP_BATCHES = 128  # read in one step: some milliseconds of work
# Of the log's end, looked through for producers' last batches, or more where batches are large.
_REMEMBERED_BYTES = 16 * 1024
_REMEMBERED_BYTES_MAX = 8 * 1024 * 1024


class ProducerRebuild:
    """How the producer state of one log is made anew.

    Args:
        complete_to: as of `ProducerSnapshots.complete_to`; -1: no state of this log is complete.
        now_ms: producers of a snapshot that are too old then are left out; None keeps all of them.
    """

    def __init__(self, disk: Disk, directory: str, config: LogConfig, *, complete_to: int, now_ms: int | None) -> None:
        self._disk = disk
        self._directory = directory
        self._expiration_ms = config.producer_id_expiration_ms
        self._complete_to = complete_to
        self._now_ms = now_ms

    def steps(
        self, state: ProducerState, segments: list[Segment], snapshots: list[int], start_offset: int, end_offset: int
    ) -> Iterator[int]:
        """Sets `state` to that of the log at `end_offset`: the newest good snapshot, then the batches after it.

        A damaged snapshot is removed.

        Yields:
            0 after some milliseconds of work: what it reads was not planned.
        """
        state.clear(start_offset)
        state.complete = start_offset == 0 and self._complete_to >= 0
        for offset in reversed(snapshots):
            if not start_offset < offset <= end_offset:
                continue
            path = f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
            try:
                complete = start_offset == 0 and offset <= self._complete_to
                state.load_snapshot(self._disk.read(path), offset, self._now_ms, self._expiration_ms, complete=complete)
                break
            except (MalformedSnapshot, FileNotFoundError):
                self._disk.remove(path)
        for index, segment in enumerate(segments):
            if index + 1 < len(segments) and segments[index + 1].base_offset <= state.end_offset:
                continue
            if state.end_offset >= end_offset:
                break
            for count, batch in enumerate(walk(segment.file, segment.seek(state.end_offset), segment.size), 1):
                if not count % _STEP_BATCHES:
                    yield 0
                if batch.base_offset >= end_offset:
                    break
                if batch.last_offset >= state.end_offset:
                    # Only markers need their records.
                    control = batch.attributes & ATTRIBUTE_CONTROL
                    data = segment.file.pread(batch.size, batch.position) if control else b""
                    replay(state, batch, data)
        state.end_offset = end_offset
        if segments and any(entry.batches for entry in state.entries.values()):
            _remember_batches(segments[-1], state, end_offset)

    def take(self, saved: SavedState, state: ProducerState, segment: Segment, *, complete: bool) -> None:
        """Sets `state` to that of a saved state; `segment` ends where that does. Raises MalformedSnapshot."""
        state.load_snapshot(saved.producers, saved.end_offset, self._now_ms, self._expiration_ms, complete=complete)
        state.end_offset = saved.end_offset
        if any(entry.batches for entry in state.entries.values()):
            _remember_batches(segment, state, saved.end_offset)


def _remember_batches(segment: Segment, state: ProducerState, end_offset: int) -> None:
    """A snapshot holds each producer's last batch alone; the log's end tells of those before, so that a retry of one is recognised."""
    largest = max((batch.size for batch in _last_batches(segment, _REMEMBERED_BYTES, end_offset)), default=0)
    size = min(max(_REMEMBERED_BYTES, RETAINED_BATCHES * largest), _REMEMBERED_BYTES_MAX)
    found: dict[int, list[StoredBatch]] = {}
    for batch in _last_batches(segment, size, end_offset):
        entry = state.entries.get(batch.producer_id)
        if entry is not None and batch.producer_epoch == entry.epoch and not batch.attributes & ATTRIBUTE_CONTROL:
            found.setdefault(batch.producer_id, []).append(batch)
    for producer_id, batches in found.items():
        state.remember(
            producer_id,
            [
                RetainedBatch.of(one.base_sequence, one.base_offset, one.last_offset, one.max_timestamp)
                for one in batches
            ],
        )


def _last_batches(segment: Segment, size: int, end_offset: int) -> Iterator[StoredBatch]:
    """Batches below `end_offset` in at least the last `size` bytes of a segment, as far as it reaches."""
    last_offset, position = segment.offset_index.entry_up_to(max(0, segment.size - size), end_offset)
    for batch in walk(segment.file, segment.seek(last_offset) if position else 0, segment.size):
        if batch.base_offset >= end_offset:
            return
        yield batch
