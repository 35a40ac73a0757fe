"""`barnabas group …`: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

from cyclopts import App, Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked
from barnabas.client.admin import Admin, GroupDescription, PartitionLag
from barnabas.client.errors import IllegalState
from barnabas.client.types import TopicPartition

__all__ = ["app"]

app = App(
    name="group",
    help_epilogue="Examples:\n\n`barnabas group list`\n\n`barnabas group describe kitchen --watch`\n\n"
    "`barnabas group reset-offsets kitchen --to earliest --execute`",
)

GroupId = Annotated[str, Parameter(help="The consumers' group.id.")]


@app.command(name="list", help_epilogue="Examples:\n\n`barnabas group list`")
def list_(*, connection: Connection = DEFAULT_CONNECTION) -> int:
    """List groups with their state and protocol."""

    async def work() -> None:
        async with connection.admin() as admin:
            groups = sorted(await admin.list_groups())
            if not groups:
                print("there are no groups", file=sys.stderr)
            for group in groups:
                print(f"{group.group_id}  {group.state or 'unknown'}  {group.type.lower() or 'classic'}")

    return worked("group list", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas group describe kitchen`\n\n`barnabas group describe kitchen --watch`"
)
def describe(
    group: GroupId,
    *,
    watch: Annotated[bool, Parameter(negative=(), help="Keep the table up to date until Ctrl-C.")] = False,
    every: Annotated[float, Parameter(help="Seconds between updates with --watch.")] = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show a group: its members, and for each partition the committed offset, the end offset and the lag."""

    async def work() -> None:
        async with connection.admin() as admin:
            if not watch:
                print("\n".join(_table(*await _read(admin, group))))
                return
            from rich.live import Live
            from rich.text import Text

            with Live(Text(""), refresh_per_second=8) as live:
                while True:
                    live.update(Text("\n".join(_table(*await _read(admin, group)))), refresh=True)
                    await asyncio.sleep(max(every, 0.1))

    return worked("group describe", connection, work())


@app.command(
    name="reset-offsets",
    help_epilogue="Examples:\n\n`barnabas group reset-offsets kitchen --to earliest` only shows what would be done.\n\n"
    "`barnabas group reset-offsets kitchen --to 2026-11-01T00:00:00 --topic orders --execute`\n\n"
    "`barnabas group reset-offsets kitchen --by -100 --topic orders --partition 0 --execute`",
)
def reset_offsets(
    group: GroupId,
    *,
    to: Annotated[
        str | None,
        Parameter(help="earliest, latest, an offset, or a local time (ISO 8601) of the first record to read."),
    ] = None,
    by: Annotated[int | None, Parameter(help="Move forward by this many records; backward if negative.")] = None,
    topic: Annotated[
        tuple[str, ...], Parameter(negative=(), help="Only these topics [default: all with committed offsets].")
    ] = (),
    partition: Annotated[tuple[int, ...], Parameter(negative=(), help="Only these partitions of the topics.")] = (),
    execute: Annotated[
        bool, Parameter(negative=(), help="Change the offsets; without it they are only shown.")
    ] = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Reset the committed offsets of a group without members. Offsets stay within the range of each partition."""
    if (to is None) == (by is None):
        print("barnabas group reset-offsets: give either --to or --by", file=sys.stderr)
        return 2
    try:
        target = by if to is None else _parse(to)
    except ValueError:
        print(f"barnabas group reset-offsets: {to!r} is no offset, time, 'earliest' or 'latest'", file=sys.stderr)
        return 2

    async def work() -> None:
        async with connection.admin() as admin:
            committed = {tp: at.offset for tp, at in (await admin.list_group_offsets(group)).items()}
            chosen = await _choose(admin, committed, topic, partition)
            if not chosen:
                raise IllegalState(f"group {group!r} has committed nothing there; name a --topic to begin one")
            moved = await _targets(admin, chosen, committed, target, relative=to is None)
            if execute:
                await admin.alter_group_offsets(group, moved)
            for tp, offset in sorted(moved.items()):
                print(f"{tp.topic}-{tp.partition}  {committed.get(tp, '-')} → {offset}")
            if not execute:
                print("nothing was changed; add --execute to do it", file=sys.stderr)

    return worked("group reset-offsets", connection, work())


@app.command(help_epilogue="Examples:\n\n`barnabas group delete kitchen`")
def delete(group: GroupId, *, connection: Connection = DEFAULT_CONNECTION) -> int:
    """Delete a group without members and its committed offsets."""

    async def work() -> None:
        async with connection.admin() as admin:
            await admin.delete_group(group)
        print(f"deleted {group}")

    return worked("group delete", connection, work())


async def _read(admin: Admin, group: str) -> tuple[GroupDescription, dict[TopicPartition, PartitionLag]]:
    return await admin.describe_group(group), await admin.group_lag(group)


def _table(group: GroupDescription, lags: Mapping[TopicPartition, PartitionLag]) -> list[str]:
    """Formats a group as a table."""
    owners = {tp: member for member in group.members for tp in member.assignment}
    rows = [("partition", "committed", "end", "lag", "member", "host")]
    for tp in sorted({*lags, *owners}):
        lag, member = lags.get(tp), owners.get(tp)
        figures = ("-", "-", "-") if lag is None else (str(lag.committed), str(lag.end), str(lag.lag))
        who = ("-", "-") if member is None else (member.group_instance_id or member.client_id, member.client_host)
        rows.append((f"{tp.topic}-{tp.partition}", *figures, *who))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{group.group_id}  {group.state}  {group.type}  {group.protocol or 'no assignor'}"]
    lines[0] += f"  {len(group.members)} members  lag {sum(lag.lag for lag in lags.values())}"
    if len(rows) > 1:
        lines += [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
    return lines


def _parse(to: str) -> str | int | datetime:
    """Parses the value of --to: a name, an offset or a time.

    Raises:
        ValueError: the value is none of them.
    """
    if to in ("earliest", "latest"):
        return to
    return int(to) if to.isdecimal() else datetime.fromisoformat(to)


async def _choose(
    admin: Admin, committed: Mapping[TopicPartition, int], topics: Sequence[str], partitions: Sequence[int]
) -> list[TopicPartition]:
    """Selects the partitions that the arguments name."""
    if topics:
        described = await admin.describe_topics(topics)
        known = [TopicPartition(name, p.partition) for name, info in described.items() for p in info.partitions]
    else:
        known = list(committed)
    return [tp for tp in known if not partitions or tp.partition in partitions]


async def _targets(
    admin: Admin,
    chosen: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    target: str | int | datetime | None,
    *,
    relative: bool,
) -> dict[TopicPartition, int]:
    """Computes the new offset of each partition, within its range of offsets."""
    first = await admin.list_offsets(dict.fromkeys(chosen, "earliest"))
    last = await admin.list_offsets(dict.fromkeys(chosen, "latest"))
    found: dict[TopicPartition, int] = {}
    if isinstance(target, datetime):
        at = await admin.list_offsets(dict.fromkeys(chosen, int(target.timestamp() * 1000)))
        found = {tp: last[tp].offset if place.offset < 0 else place.offset for tp, place in at.items()}
    for tp in chosen:
        if isinstance(target, int):
            wanted = committed.get(tp, first[tp].offset) + target if relative else target
        elif isinstance(target, str):
            wanted = (first if target == "earliest" else last)[tp].offset
        else:
            wanted = found[tp]
        found[tp] = min(max(wanted, first[tp].offset), last[tp].offset)
    return found
