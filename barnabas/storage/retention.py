"""Retention: selects the segments to delete, oldest first and without gaps. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.storage.log_config import LogConfig
from barnabas.storage.segment import Segment


def expired_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
) -> int:
    """Number of oldest segments to delete: by retention.ms, retention.bytes, or below the log start offset."""
    surplus = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        end_offset = log_end_offset if following is None else following.base_offset
        # The last segment is deleted only by age; an empty one replaces it.
        if end_offset > high_watermark or (following is None and not segment.size):
            break
        below_start = following is not None and end_offset <= log_start_offset
        too_old = (
            config.deletes and config.retention_ms >= 0 and now_ms - segment.largest_timestamp() > config.retention_ms
        )
        too_many = config.deletes and config.retention_bytes >= 0 and surplus - segment.size >= 0
        if not (below_start or too_old or too_many):
            break
        surplus -= segment.size
        count += 1
    return count
