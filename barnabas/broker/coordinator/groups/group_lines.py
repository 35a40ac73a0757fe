"""Log lines of groups: states, epochs, members. The log output escapes and shortens ids of clients."""

from __future__ import annotations

from barnabas.broker.coordinator.groups.records import ConsumerRecord, GroupRecord, Kind
from barnabas.loggers import logger

log = logger("kafka.coordinator.group")


def on_state(group_id: str, before: str, after: str, generation: int, members: int) -> None:
    log.info(
        "Group changes its state: group=%s before=%s after=%s generation=%d members=%d",
        group_id,
        before,
        after,
        generation,
        members,
    )


def on_joined(group_id: str, member_id: str, client_id: str, client_host: str) -> None:
    log.info("Member joins: group=%s member=%s client_id=%s host=%s", group_id, member_id, client_id, client_host)


def on_removed(group_id: str, member_id: str) -> None:
    """A member of a classic group leaves, or is removed."""
    log.info("Member is removed: group=%s member=%s", group_id, member_id)


def on_expired(group_id: str, member_id: str, deadline: str) -> None:
    """A passed deadline ("session", "join", "sync" or "rebalance") removes the member."""
    log.info("Member has expired and is removed: group=%s member=%s deadline=%s", group_id, member_id, deadline)


def on_record(record: ConsumerRecord | GroupRecord) -> None:
    """A record of a group is committed."""
    if isinstance(record, GroupRecord):
        if record.value is None:
            log.info("Group is deleted: group=%s", record.group_id)
        return
    kind, value = record.kind, record.value
    if kind is Kind.GROUP_EPOCH:
        if value is None:
            log.info("Group is deleted: group=%s", record.group_id)
        else:
            log.info("Group has a new epoch: group=%s epoch=%d", record.group_id, value.epoch)
    elif kind is Kind.TARGET_ASSIGNMENT_EPOCH and value is not None:
        log.info("Group has a new target assignment: group=%s epoch=%d", record.group_id, value.epoch)
    elif kind is Kind.MEMBER_METADATA:
        if value is None:
            on_removed(record.group_id, record.part)
        else:
            log.info("Member joins or changes: group=%s member=%s", record.group_id, record.part)
