"""Expiry of committed offsets (KIP-211), and with them of groups without members.

Driven by: `GroupShard.expired`, every `offsets.retention.check.interval.ms`. Emits: tombstones.

An offset does not expire while an open transaction has written it anew, or while members read its topic. The retention
counts as `Group.offset_expiry` says. An OffsetCommit of version 2 to 4 may have brought an expiry time of its own.
"""

from __future__ import annotations

from barnabas.broker.coordinator.groups.group import Group
from barnabas.broker.coordinator.groups.offsets import OffsetStore
from barnabas.broker.coordinator.groups.records import NO_EXPIRY, CommittedOffset, OffsetRecord

__all__ = ["expired_offsets"]


def expired_offsets(
    group: Group, offsets: OffsetStore, retention_ms: int, now_ms: int
) -> tuple[list[OffsetRecord], bool]:
    """Returns tombstones of the group's expired offsets, and whether it has no other offsets, committed or pending."""
    group_id = group.group_id
    expiry = group.offset_expiry()
    if expiry is None:
        return [], False
    all_expired = not offsets.pending_partitions(group_id)
    records: list[OffsetRecord] = []
    for topic, partition, committed in offsets.partitions(group_id):
        if (
            not _is_expired(committed, expiry.emptied_ms, retention_ms, now_ms)
            or group.is_subscribed_to(topic)
            or offsets.is_pending(group_id, topic, partition)
        ):
            all_expired = False
        else:
            records.append(OffsetRecord(group_id, topic, partition, None))
    return records, all_expired


def _is_expired(committed: CommittedOffset, emptied_ms: int | None, retention_ms: int, now_ms: int) -> bool:
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms if emptied_ms is None else emptied_ms
    return now_ms - since_ms >= retention_ms
