"""What `barnabas group list` and `group describe` show: groups with their members, committed offsets and lag."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from barnabas.cli.output import table
from barnabas.cli.topic_report import found_topics
from barnabas.client.admin import Admin, GroupDescription, GroupListing, GroupMemberDescription
from barnabas.client.errors import UnknownGroup
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode

__all__ = [
    "STATES",
    "TYPES",
    "GroupReport",
    "PartitionReport",
    "group_document",
    "group_summary",
    "listing_document",
    "members_text",
    "offsets_text",
    "partition_ends",
    "reported_group",
    "state_text",
]

STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Dead")
TYPES: Final = ("classic", "consumer")


class PartitionReport(NamedTuple):
    """A partition that a group has committed or owns. `end` is the last stable offset; None: not known."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    owner: GroupMemberDescription | None

    @property
    def lag(self) -> int | None:
        """An upper bound of the number of records that are not read yet."""
        return None if self.committed is None or self.end is None else max(self.end - self.committed, 0)


class GroupReport(NamedTuple):
    """A group; `coordinator` is a node id."""

    group: GroupDescription
    coordinator: int
    partitions: tuple[PartitionReport, ...]

    @property
    def lag(self) -> int:
        """The sum of the known lags."""
        return sum(each.lag or 0 for each in self.partitions)


async def reported_group(admin: Admin, group_id: str) -> GroupReport:
    """Describes a group with its offsets. Raises UnknownGroup if it does not exist."""
    group = await admin.describe_group(group_id)
    committed = {tp: at.offset for tp, at in (await admin.list_group_offsets(group_id)).items()}
    if group.state == "Dead" and not group.members and not committed:
        raise UnknownGroup(f"there is no group {group_id!r}", code=ErrorCode.GROUP_ID_NOT_FOUND)
    owners = {tp: member for member in group.members for tp in member.assignment}
    partitions = sorted({*committed, *owners})
    ends = await partition_ends(admin, partitions)
    reports = tuple(PartitionReport(tp, committed.get(tp), ends.get(tp), owners.get(tp)) for tp in partitions)
    return GroupReport(group, await admin.find_group_coordinator(group_id), reports)


async def partition_ends(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The last stable offsets of partitions; those that were deleted or have no leader are left out."""
    topics = await found_topics(admin, [tp.topic for tp in partitions], {})
    led = {TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions if p.leader >= 0}
    wanted = [tp for tp in partitions if tp in led]
    ends = await admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level="read_committed")
    return {tp: at.offset for tp, at in ends.items()}


def listing_document(group: GroupListing) -> dict[str, Any]:
    """A group as `group list --json` prints it."""
    return {
        "group_id": group.group_id,
        "type": group.type.lower() or "classic",
        "state": group.state or None,
        "protocol_type": group.protocol_type or None,
    }


def group_summary(report: GroupReport) -> dict[str, Any]:
    """A group without its members and offsets."""
    group = report.group
    return {
        "group_id": group.group_id,
        "type": group.type,
        "state": group.state,
        "assignor": group.protocol or None,
        "coordinator": report.coordinator,
        "member_count": len(group.members),
        "lag": report.lag,
    }


def group_document(report: GroupReport) -> dict[str, Any]:
    """A group as `group describe --json` prints it."""
    return {
        **group_summary(report),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "assignment": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(member.assignment)],
            }
            for member in report.group.members
        ],
        "offsets": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed_offset": each.committed,
                "end_offset": each.end,
                "lag": each.lag,
                "member_id": None if each.owner is None else each.owner.member_id,
            }
            for each in report.partitions
        ],
    }


def offsets_text(report: GroupReport) -> str:
    """A group as `group describe` prints it: a line, and a table of its partitions."""
    group = report.group
    members = f"{len(group.members)} member{'s' if len(group.members) != 1 else ''}"
    first = f"{group.group_id}  {group.state}  {group.type}  {group.protocol or 'no assignor'}  {members}"
    rows = [
        (_printed(each.partition), each.committed, each.end, each.lag, *_who(each.owner)) for each in report.partitions
    ]
    if not rows:
        return f"{first}  lag 0"
    return f"{first}  lag {report.lag}\n{_indented(('partition', 'committed', 'end', 'lag', 'member', 'host'), rows)}"


def members_text(report: GroupReport) -> str:
    """A group as `group describe --members` prints it: a line, and a table of its members."""
    group = report.group
    first = f"{group.group_id}  {group.state}  {group.type}  {group.protocol or 'no assignor'}"
    if not group.members:
        return f"{first}  no members"
    rows = [
        (
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            len(member.assignment),
            " ".join(map(_printed, sorted(member.assignment))) or None,
        )
        for member in group.members
    ]
    return f"{first}\n{_indented(('member', 'instance', 'client', 'host', 'count', 'partitions'), rows)}"


def state_text(reports: list[GroupReport]) -> str:
    """Groups as `group describe --state` prints them."""
    header = ("group", "type", "state", "assignor", "coordinator", "members", "lag")
    return table(header, [tuple(group_summary(each).values()) for each in reports])


def _who(member: GroupMemberDescription | None) -> tuple[str | None, str | None]:
    return (None, None) if member is None else (member.group_instance_id or member.client_id, member.client_host)


def _printed(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"


def _indented(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    return "\n".join(f"  {line}" for line in table(header, rows).splitlines())
