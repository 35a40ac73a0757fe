"""`barnabas group …`: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from cyclopts import App, Parameter

from barnabas.cli.arguments import parse_duration, parse_time
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import (
    DEFAULT_OUTPUT,
    YELLOW,
    Cell,
    Json,
    Output,
    Report,
    marked,
    named,
    place,
    place_columns,
    print_json,
)
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command, each, raiser
from barnabas.cli.streams import printable
from barnabas.client.admin import Admin, GroupDescription, GroupListing, GroupMemberDescription
from barnabas.client.errors import IllegalState, KafkaError, ResponseError, UnknownGroup
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode

STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Dead")
TYPES: Final = ("classic", "consumer")

app = App(
    name="group",
    help_epilogue="Examples:\n\n- `barnabas group list`\n- `barnabas group describe kitchen --watch`\n"
    "- `barnabas group reset-offsets kitchen --to earliest --execute`",
)

GroupId = Annotated[str, Parameter(help="The consumers' group.id.")]


@app.command(
    name=["list", "ls"],
    help_epilogue="Examples:\n\n- `barnabas group list`\n- `barnabas group list --state Empty --json`",
)
@client_command("group list")
async def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(help=f"Only these: {', '.join(STATES)}.")] = (),
    type_: Annotated[tuple[str, ...], Parameter(name="--type", help=f"Only these: {', '.join(TYPES)}.")] = (),
    output: Output = DEFAULT_OUTPUT,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """List groups with their protocol and state."""
    for option, given, valid in (("--state", state, STATES), ("--type", type_, TYPES)):
        unknown = [name for name in given if name.lower() not in {each.lower() for each in valid}]
        if unknown:
            raise WrongCall(f"{option} {unknown[0]} must be one of {', '.join(valid)}")
    states, types = {name.lower() for name in state}, {name.lower() for name in type_}
    async with connection.admin() as admin:

        async def read() -> list[GroupListing]:
            return [
                group
                for group in sorted(await admin.list_groups())
                if (not states or group.state.lower() in states)
                and (not types or (group.type.lower() or "classic") in types)
            ]

        await output.show(read, GROUPS, empty="no group matches" if states or types else "there are no groups")


@app.command(
    help_epilogue="Examples:\n\n- `barnabas group describe kitchen`\n- `barnabas group describe kitchen --watch`\n"
    "- `barnabas group describe --all --state`\n- `barnabas group describe kitchen --members --json`"
)
@client_command("group describe")
async def describe(
    *groups: Annotated[str, Parameter(help="The consumers' group.id, one or more.")],
    all_: Annotated[bool, Parameter(name="--all", help="All groups.")] = False,
    members: Annotated[bool, Parameter(help="Show the members and their partitions.")] = False,
    state: Annotated[bool, Parameter(help="Show one line for each group.")] = False,
    output: Output = DEFAULT_OUTPUT,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show groups: their members, and for each partition the committed offset, the end offset and the lag."""
    if bool(groups) == all_:
        raise WrongCall("name a group, or give --all" if not all_ else "--all excludes names")
    if members and state:
        raise WrongCall("--members excludes --state")
    missing: dict[str, KafkaError] = {}

    def text(reports: list[GroupReport]) -> str:
        if state:
            return SUMMARIES.text(reports) if reports else ""
        return "\n".join((_members_text if members else _offsets_text)(report) for report in reports)

    async with connection.admin() as admin:

        async def read() -> list[GroupReport]:
            names = [group.group_id for group in sorted(await admin.list_groups())] if all_ else groups
            missing.clear()
            reports = []
            for name in dict.fromkeys(names):
                try:
                    reports.append(await _reported(admin, name))
                except ResponseError as error:
                    if output.watch and not all_:
                        raise
                    missing[name] = error
            return reports

        await output.show(read, DESCRIBED, text)
        await each("group describe", missing, raiser(missing), connection, "group")


@app.command(help_epilogue="Examples:\n\n- `barnabas group delete kitchen`")
@client_command("group delete")
async def delete(
    *groups: Annotated[str, Parameter(required=True, help="The consumers' group.id, one or more.")],
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Delete groups without members, and their committed offsets."""
    async with connection.admin() as admin:

        async def one(group: str) -> None:
            try:
                await admin.delete_group(group)
            except ResponseError as error:
                raise type(error)(f"{group}: {error.message}", code=error.code) from error
            print(f"deleted {group}")

        await each("group delete", dict.fromkeys(groups), one, connection, "group")


@app.command(
    name="delete-offsets",
    help_epilogue="Examples:\n\n- `barnabas group delete-offsets kitchen --topic orders`\n"
    "- `barnabas group delete-offsets kitchen --topic orders --partition 0 --partition 1`",
)
@client_command("group delete-offsets", about="group:{group}")
async def delete_offsets(
    group: GroupId,
    *,
    topic: Annotated[tuple[str, ...], Parameter(help="Topics whose offsets are deleted.")] = (),
    partition: Annotated[tuple[int, ...], Parameter(help="Only these partitions of the topics.")] = (),
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Delete committed offsets of a group in topics that no member subscribes to."""
    if not topic:
        raise WrongCall("name the topics with --topic")
    async with connection.admin() as admin:
        committed = await admin.list_group_offsets(group)
        chosen = sorted(tp for tp in committed if tp.topic in topic and (not partition or tp.partition in partition))
        if not chosen:
            raise KafkaError(f"group {group!r} has committed nothing there")
        await admin.delete_group_offsets(group, chosen)
        for tp in chosen:
            print(f"deleted {tp.topic}-{tp.partition}, it was {committed[tp].offset}")


@app.command(
    name="remove-members",
    help_epilogue="Examples:\n\n- `barnabas group remove-members kitchen --instance cook-1`\n"
    "- `barnabas group remove-members kitchen --all`",
)
@client_command("group remove-members", about="group:{group}")
async def remove_members(
    group: GroupId,
    *,
    member: Annotated[tuple[str, ...], Parameter(help="Member ids, as `group describe --members` shows them.")] = (),
    instance: Annotated[tuple[str, ...], Parameter(help="Values of group.instance.id.")] = (),
    all_: Annotated[bool, Parameter(name="--all", help="All members.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Remove members from a group. The other members take over their partitions; a running member joins again."""
    if bool(member or instance) == all_:
        raise WrongCall("give --member, --instance or --all")
    async with connection.admin() as admin:
        found = {each.member_id: each for each in (await admin.describe_group(group)).members}
        members, instances = member, instance
        if all_:
            members = tuple(each.member_id for each in found.values() if each.group_instance_id is None)
            instances = tuple(each.group_instance_id for each in found.values() if each.group_instance_id)
        if not members and not instances:
            raise KafkaError(f"group {group!r} has no members")
        await admin.remove_group_members(group, member_ids=members, instance_ids=instances)
        for name in (*members, *instances):
            print(f"removed {printable(name)}")


# -- reports -----------------------------------------------------------------------------------------------------------


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
    def lag(self) -> int | None:
        """The sum of the known lags; None if none is known, as where nothing is committed."""
        lags = [each.lag for each in self.partitions if each.lag is not None]
        return sum(lags) if lags else None


async def _reported(admin: Admin, group_id: str) -> GroupReport:
    """Describes a group with its offsets. Raises UnknownGroup if it does not exist."""
    group = await admin.describe_group(group_id)
    committed = {tp: at.offset for tp, at in (await admin.list_group_offsets(group_id)).items()}
    if group.state == "Dead" and not group.members and not committed:
        raise UnknownGroup(f"there is no group {group_id!r}", code=ErrorCode.GROUP_ID_NOT_FOUND)
    owners = {tp: member for member in group.members for tp in member.assignment}
    partitions = sorted({*committed, *owners})
    ends = await _ends(admin, partitions)
    reports = tuple(PartitionReport(tp, committed.get(tp), ends.get(tp), owners.get(tp)) for tp in partitions)
    return GroupReport(group, await admin.find_group_coordinator(group_id), reports)


async def _ends(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The last stable offsets of partitions; those that were deleted or have no leader are left out."""
    topics = await admin.describe_topics([tp.topic for tp in partitions], refused={})
    led = {TopicPartition(name, p.partition) for name, info in topics.items() for p in info.partitions if p.leader >= 0}
    wanted = dict.fromkeys((tp for tp in partitions if tp in led), "latest")
    return {tp: at.offset for tp, at in (await admin.list_offsets(wanted, isolation_level="read_committed")).items()}


GROUPS = Report[GroupListing](
    Cell("group", "group_id", shrinks=True),
    Cell("type", "type", lambda g: g.type.lower() or "classic"),
    Cell("state", "state", lambda g: g.state or None, wrong=lambda g: g.state == "Dead"),
    Cell("", "protocol_type", lambda g: g.protocol_type or None),
)
OFFSETS = Report[PartitionReport](
    *place_columns(lambda p: p.partition),
    Cell("committed", "committed_offset", lambda p: p.committed),
    Cell("end", "end_offset", lambda p: p.end),
    Cell("lag", "lag", wrong=lambda p: p.lag, colour=YELLOW),
    Cell("", "member_id", lambda p: None if p.owner is None else p.owner.member_id),
    Cell(
        "member",
        text=lambda p: None if p.owner is None else p.owner.group_instance_id or p.owner.client_id,
        shrinks=True,
    ),
    Cell("host", text=lambda p: None if p.owner is None else p.owner.client_host, shrinks=True),
)
MEMBERS = Report[GroupMemberDescription](
    Cell("member", "member_id", shrinks=True),
    Cell("instance", "group_instance_id", shrinks=True),
    Cell("client", "client_id", shrinks=True),
    Cell("host", "client_host", shrinks=True),
    Cell("count", text=lambda m: len(m.assignment)),
    Cell(
        "partitions",
        "assignment",
        lambda m: [place(tp) for tp in sorted(m.assignment)],
        lambda m: " ".join(map(named, sorted(m.assignment))) or None,
        shrinks=True,
    ),
)
_SUMMARY: Final = (
    Cell[GroupReport]("group", "group_id", lambda r: r.group.group_id, shrinks=True),
    Cell[GroupReport]("type", "type", lambda r: r.group.type),
    Cell[GroupReport]("state", "state", lambda r: r.group.state, wrong=lambda r: r.group.state == "Dead"),
    Cell[GroupReport]("assignor", "assignor", lambda r: r.group.protocol or None),
    Cell[GroupReport]("coordinator", "coordinator"),
    Cell[GroupReport]("members", "member_count", lambda r: len(r.group.members)),
    Cell[GroupReport]("lag", "lag", wrong=lambda r: r.lag, colour=YELLOW),
)
SUMMARIES = Report(*_SUMMARY)
DESCRIBED = Report(
    *_SUMMARY,
    Cell("", "members", lambda r: MEMBERS.documents(r.group.members)),
    Cell("", "offsets", lambda r: OFFSETS.documents(r.partitions)),
)


def _offsets_text(report: GroupReport) -> str:
    """A group as `group describe` prints it: a line, and a table of its partitions."""
    count = len(report.group.members)
    lag = "lag -" if report.lag is None else marked(f"lag {report.lag}", YELLOW if report.lag else "")
    first = f"{_head(report.group)}  {count} member{'s' if count != 1 else ''}  {lag}"
    return first + ("\n" + OFFSETS.text(report.partitions, indent="  ") if report.partitions else "")


def _members_text(report: GroupReport) -> str:
    """A group as `group describe --members` prints it: a line, and a table of its members."""
    members = report.group.members
    first = _head(report.group) + ("" if members else "  no members")
    return first + ("\n" + MEMBERS.text(members, indent="  ") if members else "")


def _head(group: GroupDescription) -> str:
    return printable(f"{group.group_id}  {group.state}  {group.type}  {group.protocol or 'no assignor'}")


# -- reset-offsets: without --execute nothing is changed. An offset outside of a partition's range becomes its first or last one.

CSV_LINES_MAX: Final = 1_000_000
INT64_MAX: Final = 2**63 - 1


class _Target(NamedTuple):
    """Where to go: one of the fields is set."""

    name: str = ""  # earliest, latest or current
    offset: int | None = None
    time_ms: int | None = None
    ago_ms: int | None = None
    by: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None


@app.command(
    name="reset-offsets",
    help_epilogue="Examples:\n\n- `barnabas group reset-offsets kitchen --to earliest` only shows what would be done.\n"
    "- `barnabas group reset-offsets kitchen --to 2026-11-01T00:00:00 --topic orders --execute`\n"
    "- `barnabas group reset-offsets kitchen --by -100 --topic orders --partition 0 --execute`\n"
    "- `barnabas group reset-offsets kitchen --to current --export > kitchen.csv` keeps its offsets, and\n"
    "- `barnabas group reset-offsets kitchen --file kitchen.csv --execute` brings them back.",
)
@client_command("group reset-offsets", about="group:{group}")
async def reset_offsets(
    group: GroupId,
    *,
    to: Annotated[
        str | None,
        Parameter(help="earliest, latest, current, an offset, or a time (ISO 8601) of the first record to read."),
    ] = None,
    ago: Annotated[str | None, Parameter(help="The first record of the last 30s, 15m, 2h, 7d, PT1H.")] = None,
    by: Annotated[int | None, Parameter(help="Move forward by this many records; backward if negative.")] = None,
    file: Annotated[Path | None, Parameter(help="The offsets of a CSV file with lines TOPIC,PARTITION,OFFSET.")] = None,
    topic: Annotated[tuple[str, ...], Parameter(help="Only these topics [default: all with committed offsets].")] = (),
    partition: Annotated[tuple[int, ...], Parameter(help="Only these partitions of the topics.")] = (),
    execute: Annotated[bool, Parameter(help="Change the offsets; without it they are only shown.")] = False,
    export: Annotated[bool, Parameter(help="Print the new offsets as CSV.")] = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Reset the committed offsets of a group without members. Offsets stay within the range of each partition."""
    if sum(each is not None for each in (to, ago, by, file)) != 1:
        raise WrongCall("give one of --to, --ago, --by and --file")
    if export and json_:
        raise WrongCall("--export excludes --json")
    try:
        target = _target(group, to, ago, by, file)
    except ValueError as error:
        raise WrongCall(str(error)) from None
    async with connection.admin() as admin:
        committed = {tp: at.offset for tp, at in (await admin.list_group_offsets(group)).items()}
        known = committed
        if target.offsets is not None:
            known = {tp: offset for tp, offset in target.offsets.items() if not topic or tp.topic in topic}
        chosen = await _choose(admin, known, () if target.offsets is not None else topic, partition)
        if not chosen and target.offsets is not None:
            raise IllegalState(f"{file} has no such partition")
        if not chosen:
            raise IllegalState(f"group {group!r} has committed nothing there; name a --topic to begin one")
        moved = await _moved(admin, chosen, committed, target)
        if execute:
            await _check_inactive(admin, group)
            await admin.alter_group_offsets(group, moved)
    _print(moved, committed, export, json_)
    if not execute:
        sys.stdout.flush()
        print("nothing was changed; add --execute to do it", file=sys.stderr)


def read_offsets_csv(path: Path, group: str) -> dict[TopicPartition, int]:
    """Reads lines TOPIC,PARTITION,OFFSET or GROUP,TOPIC,PARTITION,OFFSET; lines of other groups are left out.

    Raises WrongCall: the file cannot be read, or a line has another form.
    """
    found: dict[TopicPartition, int] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, line in enumerate(csv.reader(file), 1):
                if number > CSV_LINES_MAX:
                    raise WrongCall(f"{path} has more than {CSV_LINES_MAX} lines")
                if not line:
                    continue
                *owner, topic, partition, offset = [cell.strip() for cell in line] if len(line) in (3, 4) else [""] * 3
                if not (topic and partition.isdecimal() and offset.isdecimal() and int(offset) <= INT64_MAX):
                    raise WrongCall(f"{path}, line {number}: {','.join(line)!r} is not TOPIC,PARTITION,OFFSET")
                if owner in ([], [group]):
                    found[TopicPartition(topic, int(partition))] = int(offset)
    except OSError as error:
        raise WrongCall(f"cannot read {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise WrongCall(f"cannot read {path}: it is not a CSV file in UTF-8: {error}") from None
    if not found:
        raise WrongCall(f"{path} has no offsets of group {group!r}")
    return found


def _target(group: str, to: str | None, ago: str | None, by: int | None, file: Path | None) -> _Target:
    """Reads the options. Raises ValueError or WrongCall if one cannot be used."""
    if file is not None:
        return _Target(offsets=read_offsets_csv(file, group))
    if ago is not None:
        return _Target(ago_ms=parse_duration(ago))
    if by is not None or to is None:
        return _Target(by=by)
    if to in ("earliest", "latest", "current"):
        return _Target(name=to)
    if to.isdecimal():
        if len(to) > 19 or int(to) > INT64_MAX:
            raise ValueError(f"{to[:30]} is above the largest offset")
        return _Target(offset=int(to))
    try:
        return _Target(time_ms=parse_time(to))
    except ValueError:
        raise ValueError(f"{to!r} is no offset, no time, and not 'earliest', 'latest' or 'current'") from None


async def _choose(
    admin: Admin, known: Mapping[TopicPartition, int], topics: Sequence[str], partitions: Sequence[int]
) -> list[TopicPartition]:
    """Selects the partitions that the arguments name. Raises KafkaError if one of them does not exist."""
    found = await admin.describe_topics(topics or sorted({tp.topic for tp in known}))
    existing = {TopicPartition(name, p.partition) for name, info in found.items() for p in info.partitions}
    chosen = existing if topics else set(known)
    chosen = {tp for tp in chosen if not partitions or tp.partition in partitions}
    if gone := sorted(chosen - existing):
        raise IllegalState(f"{gone[0].topic} has no partition {gone[0].partition}")
    for name in topics:
        if lacking := sorted(set(partitions) - {tp.partition for tp in existing if tp.topic == name}):
            raise IllegalState(f"{name} has no partition {lacking[0]}")
    return sorted(chosen)


async def _moved(
    admin: Admin, chosen: Sequence[TopicPartition], committed: Mapping[TopicPartition, int], target: _Target
) -> dict[TopicPartition, int]:
    """The new offset of each partition, within its range."""
    first = {tp: at.offset for tp, at in (await admin.list_offsets(dict.fromkeys(chosen, "earliest"))).items()}
    last = {tp: at.offset for tp, at in (await admin.list_offsets(dict.fromkeys(chosen, "latest"))).items()}
    if target.time_ms is not None or target.ago_ms is not None:
        since = target.time_ms if target.time_ms is not None else round(time.time() * 1000) - (target.ago_ms or 0)
        at = await admin.list_offsets(dict.fromkeys(chosen, max(since, 0)))
        wanted = {tp: last[tp] if place.offset < 0 else place.offset for tp, place in at.items()}
    elif target.offsets is not None:
        wanted = {tp: target.offsets.get(tp, committed.get(tp, first[tp])) for tp in chosen}
    elif target.by is not None:
        wanted = {tp: committed.get(tp, first[tp]) + target.by for tp in chosen}
    elif target.offset is not None:
        wanted = dict.fromkeys(chosen, target.offset)
    elif target.name == "current":
        wanted = {tp: committed.get(tp, last[tp]) for tp in chosen}
    else:
        wanted = first if target.name == "earliest" else last
    return {tp: min(max(wanted[tp], first[tp]), last[tp]) for tp in chosen}


async def _check_inactive(admin: Admin, group: str) -> None:
    try:
        members = (await admin.describe_group(group)).members
    except UnknownGroup:  # the offsets begin one
        return
    if members:
        what = "1 member" if len(members) == 1 else f"{len(members)} members"
        raise IllegalState(f"group {group!r} has {what}: stop its consumers first; nothing was changed")


def _print(
    moved: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int], export: bool, json_: bool
) -> None:
    if json_:
        print_json([{**place(tp), "committed_offset": committed.get(tp), "new_offset": to} for tp, to in moved.items()])
    elif export:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows((tp.topic, tp.partition, offset) for tp, offset in moved.items())
    else:
        for tp, offset in moved.items():
            print(f"{named(tp)}  {committed.get(tp, '-')} → {offset}")
