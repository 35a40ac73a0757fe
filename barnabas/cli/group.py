"""`barnabas group …`: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from cyclopts import App, Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import DEFAULT_OUTPUT, YELLOW, Cell, Output, Report, marked, named, place, place_columns
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command, each, raiser
from barnabas.cli.streams import printable
from barnabas.client.admin import Admin, GroupDescription, GroupListing, GroupMemberDescription
from barnabas.client.errors import KafkaError, ResponseError, UnknownGroup
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode

STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Dead")
TYPES: Final = ("classic", "consumer")

app = App(
    name="group",
    help_epilogue="Examples:\n\n- `barnabas group list`\n- `barnabas group describe kitchen --watch`\n"
    "- `barnabas group reset-offsets kitchen --to earliest --execute`",
)
app.command(
    "barnabas.cli.group_reset:reset_offsets",
    name="reset-offsets",
    help="Reset the committed offsets of a group without members.",
    help_epilogue="Examples:\n\n- `barnabas group reset-offsets kitchen --to earliest` only shows what would be done.\n"
    "- `barnabas group reset-offsets kitchen --to 2026-11-01T00:00:00 --topic orders --execute`\n"
    "- `barnabas group reset-offsets kitchen --by -100 --topic orders --partition 0 --execute`\n"
    "- `barnabas group reset-offsets kitchen --to current --export > kitchen.csv` keeps its offsets, and\n"
    "- `barnabas group reset-offsets kitchen --file kitchen.csv --execute` brings them back.",
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
