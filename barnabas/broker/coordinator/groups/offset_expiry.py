"""Expiry of committed offsets, and of groups that then have neither members nor offsets (KIP-211).

An offset does not expire while an open transaction has a newer one for its partition, or while members read its topic. The retention
begins as `Group.offset_expiry` returns. An OffsetCommit of version 2 to 4 may have its own expiry time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from barnabas.broker.coordinator.groups.group import Group
from barnabas.broker.coordinator.groups.offsets import OffsetStore
from barnabas.broker.coordinator.groups.records import NO_EXPIRY, CommittedOffset, OffsetRecord


def expired_offsets(
    present: Callable[[], Group], offsets: OffsetStore, retention_ms: int, now_ms: int
) -> Generator[tuple[int, Sequence[OffsetRecord]], None, bool]:
    """Finds the expired offsets of a group, in steps.

    Yields the number of offsets that were checked, and tombstones of the expired ones, which must be staged before the
    next step. Returns whether the group then has no offsets, committed or pending.

    Args:
        present: returns the group as it is now: members may join between two steps, and then its offsets stay.
    """
    group = present()
    if group.offset_expiry() is None:
        return False
    group_id = group.group_id
    for topic, partitions in offsets.chunks(group_id):
        group = present()
        expiry = group.offset_expiry()
        if expiry is None:
            return False
        if group.is_subscribed_to(topic):
            yield 1, []
            continue
        records = []
        for partition in partitions:
            committed = offsets.get(group_id, topic, partition)
            if (
                committed is not None
                and _is_expired(committed, expiry.emptied_ms, retention_ms, now_ms)
                and not offsets.is_pending(group_id, topic, partition)
            ):
                records.append(OffsetRecord(group_id, topic, partition, None))
        yield len(partitions), records
    return not offsets.has_any(group_id)


def _is_expired(committed: CommittedOffset, emptied_ms: int | None, retention_ms: int, now_ms: int) -> bool:
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms if emptied_ms is None else emptied_ms
    return now_ms - since_ms >= retention_ms
