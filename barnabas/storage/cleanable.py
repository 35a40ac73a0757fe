"""Cleanable range and priority of a compacted log (KIP-58, KIP-354): pure functions.
Excluded are offsets from the last stable offset on, the active segment, and records younger than min.compaction.lag.ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from barnabas.storage.log_config import LogConfig
from barnabas.storage.segment import RELATIVE_OFFSET_MAX, Segment

NOTHING: Final = -1.0


class Cleanable(NamedTuple):
    """The cleanable range of one log: [first_dirty_offset, first_uncleanable_offset).

    Attributes:
        first_uncleanable_offset: start of a segment; `first_dirty_offset` if no segment may be cleaned.
        dirty_ratio: cleanable bytes / bytes below `first_uncleanable_offset`; negative if nothing is cleanable.
        overdue: a record is older than max.compaction.lag.ms.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    dirty_ratio: float
    overdue: bool

    def is_due(self, config: LogConfig) -> bool:
        return self.dirty_ratio > (0 if self.overdue else config.min_cleanable_dirty_ratio)


def assess(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    cleaned_to: int,
    log_start_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> Cleanable:
    """`cleaned_to` is the end offset of the last cleaning, 0 before the first."""
    first_dirty = max(cleaned_to, log_start_offset)
    cleanable: list[Segment] = []
    dirty = 0
    oldest = 0  # first timestamp of the oldest dirty segment, from which max.compaction.lag.ms counts; 0 for none
    for segment, following in pairwise(segments):
        if following.base_offset > last_stable_offset:
            break
        if following.base_offset > first_dirty:
            if config.min_compaction_lag_ms and segment.largest_timestamp() > now_ms - config.min_compaction_lag_ms:
                break
            dirty += segment.size
            if segment.size and segment.first_timestamp > 0:
                oldest = min(oldest or segment.first_timestamp, segment.first_timestamp)
        cleanable.append(segment)
    total = sum(segment.size for segment in cleanable)
    if not dirty:
        return Cleanable(first_dirty, first_dirty, NOTHING, False)
    end = segments[len(cleanable)].base_offset
    overdue = 0 < oldest < now_ms - config.max_compaction_lag_ms
    return Cleanable(first_dirty, end, dirty / total, overdue)


def group_segments(segments: Sequence[Segment], segment_bytes: int, end_offset: int) -> list[list[Segment]]:
    """Neighbouring segments that fit one segment of `segment_bytes` and one index. `end_offset` is exclusive."""
    ends = [following.base_offset for following in segments[1:]] + [end_offset]
    groups: list[list[Segment]] = []
    size = 0
    for segment, end in zip(segments, ends, strict=True):
        if (
            groups
            and size + segment.size <= segment_bytes
            and end - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups
