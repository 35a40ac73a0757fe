"""`barnabas log-dirs`: the log directories of brokers with their sizes and replicas, as Kafka's kafka-log-dirs shows them."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from barnabas.cli.output import Json, print_json, table
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked
from barnabas.client.admin import LogDirDescription
from barnabas.client.errors import IllegalState
from barnabas.errors import ErrorCode

__all__ = ["log_dirs"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def log_dirs(
    *,
    broker: Annotated[tuple[int, ...], Parameter(negative=(), help="Only this broker [default: all that serve].")] = (),
    topic: Annotated[tuple[str, ...], Parameter(negative=(), help="Only replicas of this topic.")] = (),
    partitions: Annotated[
        bool,
        Parameter(
            negative=(), help="Show each replica, the largest first: its size, lag, and whether it is a future one."
        ),
    ] = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show the log directories of brokers: sizes, free space, failures, and their replicas.

    Examples:

    `barnabas log-dirs`

    `barnabas log-dirs --broker 1 --topic orders --partitions`

    `barnabas log-dirs --json`
    """

    async def work() -> None:
        async with connection.admin() as admin:
            if topic:
                await admin.describe_topics(topic)  # refuses a topic that does not exist
            serving = {each.node_id for each in await admin.list_brokers() if not each.is_fenced}
            gone = sorted(set(broker) - serving)
            if gone:
                raise IllegalState(f"broker {gone[0]} does not serve; these do: {', '.join(map(str, sorted(serving)))}")
            found = await admin.describe_log_dirs(broker or sorted(serving))
        documents = [_as_json(node_id, directory, topic) for node_id, several in found.items() for directory in several]
        if json_:
            print_json(documents)
        else:
            print(_directories(documents))
            if partitions or topic:
                print("\n" + _replicas(documents))

    return worked("log-dirs", connection, work())


def _as_json(node_id: int, directory: LogDirDescription, topics: tuple[str, ...]) -> dict[str, Any]:
    return {
        "broker": node_id,
        "path": directory.path,
        "error": None if directory.error is ErrorCode.NONE else directory.error.name,
        "total_bytes": None if directory.total_bytes < 0 else directory.total_bytes,
        "usable_bytes": None if directory.usable_bytes < 0 else directory.usable_bytes,
        "is_cordoned": directory.is_cordoned,
        "replicas": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "size_bytes": replica.size_bytes,
                "offset_lag": replica.offset_lag,
                "is_future": replica.is_future,
            }
            for partition, replica in sorted(directory.replicas.items())
            if not topics or partition.topic in topics
        ],
    }


def _directories(documents: list[dict[str, Any]]) -> str:
    head = ("BROKER", "PATH", "STATE", "REPLICAS", "SIZE", "FREE", "TOTAL")
    return table(
        head,
        [
            (
                each["broker"],
                each["path"],
                each["error"] or ("cordoned" if each["is_cordoned"] else "online"),
                len(each["replicas"]),
                as_size(sum(replica["size_bytes"] for replica in each["replicas"])),
                as_size(each["usable_bytes"]),
                as_size(each["total_bytes"]),
            )
            for each in documents
        ],
    )


def _replicas(documents: list[dict[str, Any]]) -> str:
    rows = [
        (
            each["broker"],
            f"{replica['topic']}-{replica['partition']}",
            replica["size_bytes"],
            replica["offset_lag"],
            "future" if replica["is_future"] else "present",
            each["path"],
        )
        for each in documents
        for replica in each["replicas"]
    ]
    rows.sort(key=lambda row: (-row[2], row[1], row[0]))
    return table(("BROKER", "REPLICA", "BYTES", "LAG", "KIND", "PATH"), rows)


def as_size(size_bytes: int | None) -> str | None:
    """Formats a size in bytes with a binary unit, such as 1.5 MiB; None stays None."""
    if size_bytes is None:
        return None
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
