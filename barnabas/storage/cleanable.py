"""What of a compacted log is to be cleaned, and how urgently: pure functions over its segments and configuration.

Driven by: the cleaner, at each look. Emits: the range of offsets that one cleaning may touch, the share of it that is dirty, and
the groups of segments that become one each.

Invariants: nothing is cleaned at or above the last stable offset, in the active segment, or before min.compaction.lag.ms; a group's
offsets span less than 2³¹.
Follows KIP-58 (min.compaction.lag.ms) and KIP-354 (max.compaction.lag.ms).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from barnabas.storage.log_config import LogConfig
from barnabas.storage.segment import RELATIVE_OFFSET_MAX, Segment

__all__ = ["Cleanable", "assess", "group_segments"]

NOTHING: Final = -1.0


class Cleanable(NamedTuple):
    """One log as the cleaner sees it; offsets are exclusive ends and starts of ranges.

    Attributes:
        first_dirty_offset: keys below are unique already.
        first_uncleanable_offset: where a segment begins that may not be cleaned; first_dirty_offset where none may.
        dirty_ratio: cleanable bytes by all bytes below `first_uncleanable_offset`; negative where there is nothing to clean.
        overdue: a record waits for longer than max.compaction.lag.ms.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    dirty_ratio: float
    overdue: bool

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log is to be cleaned now."""
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
    """What a cleaning could do now.

    Args:
        cleaned_to: where the last cleaning ended, 0 before the first.
    """
    first_dirty = max(cleaned_to, log_start_offset)
    cleanable: list[Segment] = []
    dirty = 0
    oldest = 0  # first timestamp of the oldest dirty segment, by which the maximal lag counts; 0 for none
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
    """Neighbours that make one segment together: at most `segment_bytes`, and offsets that an index can hold.

    Args:
        end_offset: of the last of them, exclusive.
    """
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
