"""`barnabas quorum …`: shows the metadata quorum, as Kafka's kafka-metadata-quorum does."""

from __future__ import annotations

from typing import Any, NamedTuple

from cyclopts import App

from barnabas.cli.render import DEFAULT_OUTPUT, YELLOW, Cell, Json, Output, Report, known, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.client.admin import QuorumDescription, QuorumReplicaDescription
from barnabas.storage.checkpoints import encode_uuid

app = App(
    name="quorum",
    help_epilogue="Examples:\n\n- `barnabas quorum describe`\n- `barnabas quorum replication --watch`",
)


@app.command(help_epilogue="Examples:\n\n- `barnabas quorum describe`\n- `barnabas quorum describe --json`")
@client_command("quorum describe")
async def describe(*, json_: Json = False, connection: Connection = DEFAULT_CONNECTION) -> None:
    """Show the leader of the metadata log, its epoch and high watermark, the lag of the followers, voters and observers."""
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
    print(f"follower lag    {'unknown' if lag is None else lag} records, {'unknown' if lag_ms is None else lag_ms} ms")
    for name, voters in (("voters", True), ("observers", False)):
        print(f"{name:14}  {', '.join(_called(each) for each in quorum.replicas if each.is_voter is voters) or '-'}")


@app.command(
    help_epilogue="Examples:\n\n- `barnabas quorum replication`\n- `barnabas quorum replication --watch --every 2`"
)
@client_command("quorum replication")
async def replication(*, output: Output = DEFAULT_OUTPUT, connection: Connection = DEFAULT_CONNECTION) -> None:
    """Show each replica of the metadata log: its end, its lag, and when it was last seen by the leader."""
    async with connection.admin() as admin:

        async def read() -> list[_Replica]:
            quorum = await admin.describe_quorum()
            leader = _leader(quorum)
            return [_Replica(each, leader) for each in quorum.replicas]

        await output.show(read, REPLICATION)


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


class _Replica(NamedTuple):
    at: QuorumReplicaDescription
    leader: QuorumReplicaDescription | None

    @property
    def lag(self) -> int | None:
        if self.leader is None or self.leader.log_end_offset < 0 or self.at.log_end_offset < 0:
            return None
        return self.leader.log_end_offset - self.at.log_end_offset

    @property
    def status(self) -> str:
        return "leader" if self.at is self.leader else "follower" if self.at.is_voter else "observer"


REPLICATION = Report[_Replica](
    Cell("node", "node_id", lambda row: row.at.node_id),
    Cell("", "directory_id", lambda row: _directory(row.at)),
    Cell("status", "status"),
    Cell("log end", "log_end_offset", lambda row: known("log_end_offset")(row.at)),
    Cell("lag", "lag", wrong=lambda row: row.lag, colour=YELLOW),
    Cell("last fetch ms", "last_fetch_timestamp_ms", lambda row: known("last_fetch_timestamp")(row.at)),
    Cell("last caught up ms", "last_caught_up_timestamp_ms", lambda row: known("last_caught_up_timestamp")(row.at)),
)


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
