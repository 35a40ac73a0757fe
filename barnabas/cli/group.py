"""`barnabas group …`: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from cyclopts import App, Parameter

from barnabas.cli.group_report import (
    STATES,
    TYPES,
    GroupReport,
    group_document,
    listing_document,
    members_text,
    offsets_text,
    reported_group,
    state_text,
)
from barnabas.cli.output import Every, Json, Watch, shown, table
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, each, worked, wrong_call
from barnabas.client.admin import GroupListing
from barnabas.client.errors import KafkaError, ResponseError

__all__ = ["app"]

app = App(
    name="group",
    help_epilogue="Examples:\n\n`barnabas group list`\n\n`barnabas group describe kitchen --watch`\n\n"
    "`barnabas group reset-offsets kitchen --to earliest --execute`",
)
app.command(
    "barnabas.cli.group_reset:reset_offsets",
    name="reset-offsets",
    help="Reset the committed offsets of a group without members.",
    help_epilogue="Examples:\n\n`barnabas group reset-offsets kitchen --to earliest` only shows what would be done.\n\n"
    "`barnabas group reset-offsets kitchen --to 2026-11-01T00:00:00 --topic orders --execute`\n\n"
    "`barnabas group reset-offsets kitchen --by -100 --topic orders --partition 0 --execute`\n\n"
    "`barnabas group reset-offsets kitchen --to current --export > kitchen.csv` keeps its offsets, and\n\n"
    "`barnabas group reset-offsets kitchen --file kitchen.csv --execute` brings them back.",
)

GroupId = Annotated[str, Parameter(help="The consumers' group.id.")]


@app.command(
    name="list", help_epilogue="Examples:\n\n`barnabas group list`\n\n`barnabas group list --state Empty --json`"
)
def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(negative=(), help=f"Only these: {', '.join(STATES)}.")] = (),
    type_: Annotated[
        tuple[str, ...], Parameter(name="--type", negative=(), help=f"Only these: {', '.join(TYPES)}.")
    ] = (),
    json_: Json = False,
    watch: Watch = False,
    every: Every = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List groups with their protocol and state."""
    for option, given, valid in (("--state", state, STATES), ("--type", type_, TYPES)):
        unknown = [name for name in given if name.lower() not in {each.lower() for each in valid}]
        if unknown:
            return wrong_call("group list", f"{option} {unknown[0]} is none of {', '.join(valid)}")
    states, types = {name.lower() for name in state}, {name.lower() for name in type_}

    async def work() -> None:
        async with connection.admin() as admin:

            async def read() -> list[GroupListing]:
                return [
                    group
                    for group in sorted(await admin.list_groups())
                    if (not states or group.state.lower() in states)
                    and (not types or (group.type.lower() or "classic") in types)
                ]

            await shown(
                read,
                document=lambda groups: [listing_document(group) for group in groups],
                text=_listing_text,
                json_=json_,
                watch=watch,
                every=every,
                empty="no group matches" if states or types else "there are no groups",
            )

    return worked("group list", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas group describe kitchen`\n\n`barnabas group describe kitchen --watch`\n\n"
    "`barnabas group describe --all --state`\n\n`barnabas group describe kitchen --members --json`"
)
def describe(
    *groups: Annotated[str, Parameter(help="The consumers' group.id, one or more.")],
    all_: Annotated[bool, Parameter(name="--all", negative=(), help="All groups.")] = False,
    members: Annotated[bool, Parameter(negative=(), help="Show the members and their partitions.")] = False,
    state: Annotated[bool, Parameter(negative=(), help="Show one line for each group.")] = False,
    json_: Json = False,
    watch: Watch = False,
    every: Every = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show groups: their members, and for each partition the committed offset, the end offset and the lag."""
    if bool(groups) == all_:
        return wrong_call("group describe", "name a group, or give --all" if not all_ else "--all excludes names")
    if members and state:
        return wrong_call("group describe", "--members excludes --state")
    missing: dict[str, KafkaError] = {}

    def text(reports: list[GroupReport]) -> str:
        if state:
            return state_text(reports) if reports else ""
        return "\n".join((members_text if members else offsets_text)(report) for report in reports)

    async def work() -> None:
        async with connection.admin() as admin:

            async def read() -> list[GroupReport]:
                names = [group.group_id for group in sorted(await admin.list_groups())] if all_ else groups
                missing.clear()
                reports = []
                for name in dict.fromkeys(names):
                    try:
                        reports.append(await reported_group(admin, name))
                    except ResponseError as error:
                        if watch and not all_:
                            raise
                        missing[name] = error
                return reports

            await shown(
                read,
                document=lambda reports: [group_document(report) for report in reports],
                text=text,
                json_=json_,
                watch=watch,
                every=every,
            )
            await each("group describe", missing, _raiser(missing))

    return worked("group describe", connection, work())


@app.command(help_epilogue="Examples:\n\n`barnabas group delete kitchen`")
def delete(
    *groups: Annotated[str, Parameter(help="The consumers' group.id, one or more.")],
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Delete groups without members, and their committed offsets."""
    if not groups:
        return wrong_call("group delete", "name a group")

    async def work() -> None:
        async with connection.admin() as admin:

            async def one(group: str) -> None:
                try:
                    await admin.delete_group(group)
                except ResponseError as error:
                    raise type(error)(f"{group}: {error.message}", code=error.code) from error
                print(f"deleted {group}")

            await each("group delete", dict.fromkeys(groups), one)

    return worked("group delete", connection, work())


@app.command(
    name="delete-offsets",
    help_epilogue="Examples:\n\n`barnabas group delete-offsets kitchen --topic orders`\n\n"
    "`barnabas group delete-offsets kitchen --topic orders --partition 0 --partition 1`",
)
def delete_offsets(
    group: GroupId,
    *,
    topic: Annotated[tuple[str, ...], Parameter(negative=(), help="Topics whose offsets are deleted.")] = (),
    partition: Annotated[tuple[int, ...], Parameter(negative=(), help="Only these partitions of the topics.")] = (),
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Delete committed offsets of a group in topics that no member subscribes to."""
    if not topic:
        return wrong_call("group delete-offsets", "name the topics with --topic")

    async def work() -> None:
        async with connection.admin() as admin:
            committed = await admin.list_group_offsets(group)
            chosen = sorted(
                tp for tp in committed if tp.topic in topic and (not partition or tp.partition in partition)
            )
            if not chosen:
                raise KafkaError(f"group {group!r} has committed nothing there")
            await admin.delete_group_offsets(group, chosen)
            for tp in chosen:
                print(f"deleted {tp.topic}-{tp.partition}, it was {committed[tp].offset}")

    return worked("group delete-offsets", connection, work())


@app.command(
    name="remove-members",
    help_epilogue="Examples:\n\n`barnabas group remove-members kitchen --instance cook-1`\n\n"
    "`barnabas group remove-members kitchen --all`",
)
def remove_members(
    group: GroupId,
    *,
    member: Annotated[
        tuple[str, ...], Parameter(negative=(), help="Member ids, as `group describe --members` shows them.")
    ] = (),
    instance: Annotated[tuple[str, ...], Parameter(negative=(), help="Values of group.instance.id.")] = (),
    all_: Annotated[bool, Parameter(name="--all", negative=(), help="All members.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Remove members from a group. The other members take over their partitions; a running member joins again."""
    if bool(member or instance) == all_:
        return wrong_call("group remove-members", "give --member, --instance or --all")

    async def work() -> None:
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
                print(f"removed {name}")

    return worked("group remove-members", connection, work())


def _listing_text(groups: list[GroupListing]) -> str:
    rows = [(group.group_id, group.type.lower() or "classic", group.state or None) for group in groups]
    return table(("group", "type", "state"), rows)


def _raiser(errors: dict[str, KafkaError]) -> Callable[[str], Awaitable[None]]:
    async def refuse(name: str) -> None:
        raise errors[name]

    return refuse
