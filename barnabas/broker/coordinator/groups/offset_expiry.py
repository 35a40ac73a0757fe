"""Expiry of committed offsets, and of groups without members and offsets (KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from barnabas.broker.coordinator.groups.group import Group
from barnabas.broker.coordinator.groups.offsets import OffsetStore
from barnabas.broker.coordinator.groups.records import NO_EXPIRY, CommittedOffset, OffsetRecord


def expired_offsets(
    present: Callable[[], Group], offsets: OffsetStore, retention_ms: int, now_ms: int
) -> Generator[tuple[int, Sequence[OffsetRecord]], None, bool]:
    """Yields the number of checked offsets and tombstones of expired ones, to be staged before the next step.

    An offset stays while an open transaction has a newer one for its partition, or members read its topic. OffsetCommit 2 to 4 may name an
    expiry time. Returns whether the group has no offsets left, committed or pending. `present` returns the current group: members may join
    between two steps, and then its offsets stay.
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
