"""When committed offsets expire (KIP-211), and with them groups that nobody uses.

Driven by: `GroupShard.expired`, every `offsets.retention.check.interval.ms`.
Emits: tombstones.

An offset that an open transaction has written anew does not expire, nor does one of a topic that members read. For a classic
group without members the retention counts from when it became Empty, for all others from each commit; an OffsetCommit of old may
have brought a time of its own.
"""

from __future__ import annotations

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.offsets import OffsetStore
from barnabas.broker.coordinator.groups.records import NO_EXPIRY, CommittedOffset, OffsetRecord

__all__ = ["expired_offsets"]


def expired_offsets(
    group: ClassicGroup | ConsumerGroup, offsets: OffsetStore, retention_ms: int, now_ms: int
) -> tuple[list[OffsetRecord], bool]:
    """Tombstones of the group's expired offsets, and whether it has no others, committed or pending."""
    group_id = group.group_id
    emptied_ms: int | None = None
    if isinstance(group, ClassicGroup):
        simple = group.protocol_type is None
        emptied = not simple and group.state is GroupState.EMPTY
        living = group.uses_consumer_protocol and group.state is GroupState.STABLE and group.subscribed is not None
        if not (simple or emptied or living):
            return [], False
        if emptied and group.state_timestamp_ms >= 0:
            emptied_ms = group.state_timestamp_ms
    all_expired = not offsets.pending_partitions(group_id)
    records: list[OffsetRecord] = []
    for topic, partition, committed in offsets.partitions(group_id):
        if (
            not _is_expired(committed, emptied_ms, retention_ms, now_ms)
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
