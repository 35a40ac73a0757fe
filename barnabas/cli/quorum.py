"""`barnabas quorum …`: shows the metadata quorum, as Kafka's kafka-metadata-quorum does."""

from __future__ import annotations

import json
from typing import Any

from cyclopts import App

from barnabas.cli.output import Every, Json, Watch, print_json, table, watched
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked
from barnabas.client.admin import Admin, QuorumDescription, QuorumReplicaDescription
from barnabas.storage.checkpoints import encode_uuid

__all__ = ["app"]

app = App(
    name="quorum",
    help_epilogue="Examples:\n\n`barnabas quorum describe`\n\n`barnabas quorum replication --watch`",
)


@app.command(help_epilogue="Examples:\n\n`barnabas quorum describe`\n\n`barnabas quorum describe --json`")
def describe(*, json_: Json = False, connection: Connection = DEFAULT_CONNECTION) -> int:
    """Show the leader of the metadata log, its epoch and high watermark, the lag of the followers, voters and observers."""

    async def work() -> None:
        async with connection.admin() as admin:
            cluster_id = (await admin.describe_cluster())[0]
            quorum = await admin.describe_quorum()
        lag, lag_ms = _follower_lag(quorum)
        if json_:
            print_json(
                {
                    "cluster_id": cluster_id,
                    "leader_id": quorum.leader_id,
                    "leader_epoch": quorum.leader_epoch,
                    "high_watermark": quorum.high_watermark,
                    "max_follower_lag": lag,
                    "max_follower_lag_ms": lag_ms,
                    "voters": [_identity(each) for each in quorum.replicas if each.is_voter],
                    "observers": [_identity(each) for each in quorum.replicas if not each.is_voter],
                }
            )
            return
        print(f"cluster         {cluster_id}")
        print(f"leader          {quorum.leader_id} in epoch {quorum.leader_epoch}")
        print(f"high watermark  {quorum.high_watermark}")
        print(
            f"follower lag    {'unknown' if lag is None else lag} records, {'unknown' if lag_ms is None else lag_ms} ms"
        )
        for name, voters in (("voters", True), ("observers", False)):
            print(
                f"{name:14}  {', '.join(_called(each) for each in quorum.replicas if each.is_voter is voters) or '-'}"
            )

    return worked("quorum describe", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas quorum replication`\n\n`barnabas quorum replication --watch --every 2`"
)
def replication(
    *, json_: Json = False, watch: Watch = False, every: Every = 1.0, connection: Connection = DEFAULT_CONNECTION
) -> int:
    """Show each replica of the metadata log: its end, its lag, and when it was last seen by the leader."""

    async def text(admin: Admin) -> str:
        rows = _replication(await admin.describe_quorum())
        if json_:
            return json.dumps(rows, indent=None if watch else 2)
        head = ("NODE", "STATUS", "LOG-END", "LAG", "LAST-FETCH-MS", "LAST-CAUGHT-UP-MS")
        shown = ("node_id", "status", "log_end_offset", "lag", "last_fetch_timestamp_ms", "last_caught_up_timestamp_ms")
        return table(head, [[row[key] for key in shown] for row in rows])

    async def work() -> None:
        async with connection.admin() as admin:
            if watch:
                await watched(every, lambda: text(admin))
            else:
                print(await text(admin))

    return worked("quorum replication", connection, work())


def _leader(quorum: QuorumDescription) -> QuorumReplicaDescription | None:
    return next((each for each in quorum.replicas if each.node_id == quorum.leader_id), None)


def _follower_lag(quorum: QuorumDescription) -> tuple[int | None, int | None]:
    """The largest lag of a voter behind the leader, in records and in ms; None if unknown."""
    leader = _leader(quorum)
    voters = [each for each in quorum.replicas if each.is_voter]
    if leader is None:
        return None, None
    ends = [each.log_end_offset for each in voters]
    times = [each.last_caught_up_timestamp for each in voters]
    return (
        None if min(ends) < 0 else leader.log_end_offset - min(ends),
        None if min(times) < 0 else max(leader.last_caught_up_timestamp - min(times), 0),
    )


def _replication(quorum: QuorumDescription) -> list[dict[str, Any]]:
    leader = _leader(quorum)
    end = -1 if leader is None else leader.log_end_offset
    return [
        {
            "node_id": each.node_id,
            "directory_id": _directory(each),
            "log_end_offset": None if each.log_end_offset < 0 else each.log_end_offset,
            "lag": None if end < 0 or each.log_end_offset < 0 else end - each.log_end_offset,
            "last_fetch_timestamp_ms": None if each.last_fetch_timestamp < 0 else each.last_fetch_timestamp,
            "last_caught_up_timestamp_ms": None if each.last_caught_up_timestamp < 0 else each.last_caught_up_timestamp,
            "status": "leader" if each is leader else "follower" if each.is_voter else "observer",
        }
        for each in quorum.replicas
    ]


def _identity(replica: QuorumReplicaDescription) -> dict[str, Any]:
    return {
        "node_id": replica.node_id,
        "directory_id": _directory(replica),
        "endpoints": list(replica.endpoints),
    }


def _called(replica: QuorumReplicaDescription) -> str:
    known = [each for each in (_directory(replica), *replica.endpoints) if each is not None]
    return f"{replica.node_id} ({', '.join(known)})" if known else str(replica.node_id)


def _directory(replica: QuorumReplicaDescription) -> str | None:
    return encode_uuid(replica.directory_id) if any(replica.directory_id) else None
