"""`barnabas log-dirs`: the log directories of brokers with their sizes and replicas, as Kafka's kafka-log-dirs shows them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from cyclopts import Parameter

from barnabas.cli.render import Cell, Json, Report, as_size, known, named, place
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.client.admin import LogDirDescription, ReplicaDescription
from barnabas.client.errors import IllegalState
from barnabas.client.types import TopicPartition


@client_command("log-dirs")
async def log_dirs(
    *,
    broker: Annotated[tuple[int, ...], Parameter(help="Only this broker [default: all that serve].")] = (),
    topic: Annotated[tuple[str, ...], Parameter(help="Only replicas of this topic.")] = (),
    partitions: Annotated[
        bool,
        Parameter(help="Show each replica, the largest first: its size, lag, and whether it is a future one."),
    ] = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show the log directories of brokers: sizes, free space, failures, and their replicas."""

    def _wanted(tp: TopicPartition) -> bool:
        return not topic or tp.topic in topic

    async with connection.admin() as admin:
        if topic:
            await admin.describe_topics(topic)  # refuses a topic that does not exist
        serving = {each.node_id for each in await admin.list_brokers() if not each.is_fenced}
        gone = sorted(set(broker) - serving)
        if gone:
            raise IllegalState(f"broker {gone[0]} does not serve; these do: {', '.join(map(str, sorted(serving)))}")
        found = await admin.describe_log_dirs(broker or sorted(serving))
    several = [
        (node_id, each._replace(replicas={tp: of for tp, of in sorted(each.replicas.items()) if _wanted(tp)}))
        for node_id, directories in found.items()
        for each in directories
    ]
    DIRECTORIES.show(several, json_)
    if (partitions or topic) and not json_:
        rows = [_Replica(node, each.path, tp, of) for node, each in several for tp, of in each.replicas.items()]
        print("\n" + REPLICAS.text(sorted(rows, key=lambda row: (-row.at.size_bytes, row.partition, row.broker))))


class _Replica(NamedTuple):
    broker: int
    path: str
    partition: TopicPartition
    at: ReplicaDescription


_Directory = tuple[int, LogDirDescription]  # of a broker


def _state(row: _Directory) -> str:
    return row[1].error.name if row[1].error else "cordoned" if row[1].is_cordoned else "online"


DIRECTORIES = Report[_Directory](
    Cell("broker", "broker", lambda row: row[0]),
    Cell("path", "path", lambda row: row[1].path, shrinks=True),
    Cell("state", text=_state, wrong=lambda row: _state(row) != "online"),
    Cell("", "error", lambda row: row[1].error.name if row[1].error else None),
    Cell("replicas", text=lambda row: len(row[1].replicas)),
    Cell("size", text=lambda row: as_size(sum(each.size_bytes for each in row[1].replicas.values()))),
    Cell("free", "usable_bytes", lambda row: known("usable_bytes")(row[1]), lambda row: _volume(row[1].usable_bytes)),
    Cell("total", "total_bytes", lambda row: known("total_bytes")(row[1]), lambda row: _volume(row[1].total_bytes)),
    Cell("", "is_cordoned", lambda row: row[1].is_cordoned),
    Cell("", "replicas", lambda row: [{**place(tp), **each._asdict()} for tp, each in row[1].replicas.items()]),
)
REPLICAS = Report[_Replica](
    Cell("broker", text=lambda row: row.broker),
    Cell("replica", text=lambda row: named(row.partition), shrinks=True),
    Cell("bytes", text=lambda row: row.at.size_bytes),
    Cell("lag", text=lambda row: row.at.offset_lag),
    Cell("kind", text=lambda row: "future" if row.at.is_future else "present"),
    Cell("path", text=lambda row: row.path, shrinks=True),
)


def _volume(size_bytes: int) -> str | None:
    return as_size(None if size_bytes < 0 else size_bytes)
