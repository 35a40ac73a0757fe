"""`barnabas group reset-offsets`: where a group continues to read. The CSV is that of kafka-consumer-groups.

Without --execute nothing is changed. A new offset outside of a partition's range becomes its first or its last offset.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from cyclopts import Parameter

from barnabas.cli.arguments import parse_duration, parse_time
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import Json, named, place, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.client.admin import Admin
from barnabas.client.errors import IllegalState, UnknownGroup
from barnabas.client.types import TopicPartition

COMMAND: Final = "group reset-offsets"
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


@client_command(COMMAND, about="group:{group}")
async def reset_offsets(
    group: Annotated[str, Parameter(help="The consumers' group.id.")],
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
