"""ProducerRebuild: rebuilds a log's producer state at an offset from its snapshots, saved states and batches."""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.limits import RETAINED_BATCHES
from barnabas.ports import Disk
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL
from barnabas.storage.log_config import LogConfig
from barnabas.storage.producer_entries import MalformedSnapshot, RetainedBatch
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.replay import StoredBatch, batch_headers, replay
from barnabas.storage.saved_state import SavedState
from barnabas.storage.segment import Segment, file_name

SNAPSHOT_SUFFIX = ".snapshot"
LOST_PRODUCERS = "lost-producers"  # a file in the folder of a log whose state may lack producers of lost records
_STEP_BATCHES = 128  # read in one step: some milliseconds of work
# Size of the log's end that is searched for the last batches of producers; more if batches are large.
_REMEMBERED_BYTES = 16 * 1024
_REMEMBERED_BYTES_MAX = 8 * 1024 * 1024
_REMEMBERED_SEGMENTS_MAX = 16


class ProducerRebuild:
    """Rebuilds the producer state of one log.

    It is `complete` if the log is read from offset 0 without a gap, or from a snapshot up to `complete_to` (-1: never),
    and no committed records were lost. `now_ms` expires producers of a snapshot; None keeps all.
    """

    def __init__(self, disk: Disk, directory: str, config: LogConfig, *, complete_to: int, now_ms: int | None) -> None:
        self._disk = disk
        self._directory = directory
        self._expiration_ms = config.producer_id_expiration_ms
        self._complete_to = complete_to
        self._now_ms = now_ms

    def steps(
        self,
        state: PartitionProducers,
        segments: list[Segment],
        snapshots: list[int],
        start_offset: int,
        end_offset: int,
    ) -> Iterator[int]:
        """Loads the newest valid snapshot and replays up to `end_offset`. Yields 0 after some milliseconds of work."""
        state.clear(start_offset)
        state.complete = start_offset == 0 and self._complete_to >= 0
        for offset in reversed(snapshots):
            if not start_offset < offset <= end_offset:
                continue
            path = f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
            try:
                complete = start_offset == 0 and offset <= self._complete_to
                data = self._disk.read(path)
                yield from state.loading(data, offset, self._now_ms, self._expiration_ms, complete=complete)
                break
            except (MalformedSnapshot, FileNotFoundError):
                self._disk.remove(path)
        for index, segment in enumerate(segments):
            if index + 1 < len(segments) and segments[index + 1].base_offset <= state.end_offset:
                continue
            if state.end_offset >= end_offset:
                break
            for count, batch in enumerate(batch_headers(segment.file, segment.seek(state.end_offset), segment.size), 1):
                if not count % _STEP_BATCHES:
                    yield 0
                if batch.base_offset >= end_offset:
                    break
                if batch.last_offset >= state.end_offset:
                    # Only markers need their records here.
                    control = batch.attributes & ATTRIBUTE_CONTROL
                    data = segment.file.pread(batch.size, batch.position) if control else b""
                    replay(state, batch, data)
        state.end_offset = end_offset
        if segments and any(entry.batches for entry in state.entries.values()):
            yield from _remember_batches(segments, state, end_offset)

    def take(self, saved: SavedState, state: PartitionProducers, *, complete: bool) -> Iterator[int]:
        """Sets `state` from a saved state. Yields as `steps`. Raises MalformedSnapshot."""
        yield from state.loading(
            saved.producers, saved.end_offset, self._now_ms, self._expiration_ms, complete=complete
        )
        yield from state.loading_earlier(saved.earlier)
        state.end_offset = saved.end_offset


def _remember_batches(segments: list[Segment], state: PartitionProducers, end_offset: int) -> Iterator[int]:
    """Adds each producer's earlier batches from the log's end: a snapshot has only the last one. Yields as `steps`."""
    largest = max((batch.size for batch in _last_batches(segments, _REMEMBERED_BYTES, end_offset)), default=0)
    size = min(max(_REMEMBERED_BYTES, RETAINED_BATCHES * largest), _REMEMBERED_BYTES_MAX)
    found: dict[int, list[StoredBatch]] = {}
    for count, batch in enumerate(_last_batches(segments, size, end_offset), 1):
        if not count % _STEP_BATCHES:
            yield 0
        entry = state.entries.get(batch.producer_id)
        if entry is not None and batch.producer_epoch == entry.epoch and not batch.attributes & ATTRIBUTE_CONTROL:
            found.setdefault(batch.producer_id, []).append(batch)
    for count, (producer_id, batches) in enumerate(found.items(), 1):
        if not count % _STEP_BATCHES:
            yield 0
        state.remember(
            producer_id,
            [
                RetainedBatch.of(one.base_sequence, one.base_offset, one.last_offset, one.max_timestamp)
                for one in batches
            ],
        )


def _last_batches(segments: list[Segment], size: int, end_offset: int) -> Iterator[StoredBatch]:
    """The batches in at least the last `size` bytes below `end_offset`, or in the last segments."""
    first = len(segments) - 1
    # The last segment may also have batches that a truncation to `end_offset` has not removed yet.
    below = segments[first].offset_index.entry_up_to(segments[first].size, end_offset)[1]
    while first and below < size and len(segments) - first < _REMEMBERED_SEGMENTS_MAX:
        size -= below
        first -= 1
        below = segments[first].size
    for segment in segments[first:]:
        last_offset, position = segment.offset_index.entry_up_to(max(0, below - size), end_offset)
        below = 0  # all of the next segments
        for batch in batch_headers(segment.file, segment.seek(last_offset) if position else 0, segment.size):
            if batch.base_offset >= end_offset:
                return
            yield batch
