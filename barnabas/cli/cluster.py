"""`barnabas cluster`: shows the cluster and its brokers. `barnabas cluster health` says whether all partitions are served."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from cyclopts import App, Parameter

from barnabas.cli.render import (
    EVERY_S_MIN,
    RED,
    YELLOW,
    Every,
    Json,
    Watch,
    as_json,
    duration,
    marked,
    named_some,
    place,
    print_json,
    watched,
)
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, Ended, client_command, worked, wrong_call
from barnabas.cli.streams import printable
from barnabas.client.admin import Admin
from barnabas.client.errors import KafkaError
from barnabas.client.types import TopicPartition
from barnabas.protocol.metadata_versions import metadata_version_name

if TYPE_CHECKING:
    from barnabas.pipeline.sinks import SinkAdmin

METADATA_VERSION = "metadata.version"

app = App(
    name="cluster",
    help_epilogue="Examples:\n\n- `barnabas cluster`\n"
    "- `barnabas cluster --brokers 3 --timeout 2 -b localhost:9092,localhost:9093`\n"
    "- `barnabas cluster health --exit-when-healthy` waits until every partition is served by all its replicas.",
)


@app.default
@client_command("cluster")
async def cluster(
    *,
    brokers: Annotated[int, Parameter(help="Fail unless at least this many brokers serve.")] = 1,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show the cluster: its id, the brokers that serve, its features. Exits with 1 if no broker answers."""
    async with connection.admin() as admin:
        document = await _described(admin)
    if json_:
        print_json(document)
    else:
        print(_described_text(document))
    serving = len(document["brokers"])
    if serving < brokers:
        sys.stdout.flush()
        print(f"barnabas cluster: {serving} brokers serve, {brokers} are wanted", file=sys.stderr)
        raise Ended(1)


async def _described(admin: Admin) -> dict[str, Any]:
    described = await admin.describe_cluster()
    quorum = await admin.describe_quorum()
    features = await admin.features()
    return {
        "cluster_id": described[0],
        "controller": quorum.leader_id,
        "voters": list(quorum.voters),
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.rack or None}
            for broker in sorted(described[2])
        ],
        "features": {
            name: {
                "level": level,
                "name": metadata_version_name(level) if name == METADATA_VERSION else str(level),
            }
            for name, level in sorted(features.items())
        },
    }


def _described_text(document: dict[str, Any]) -> str:
    voters = ", ".join(map(str, document["voters"]))
    lines = [f"cluster {document['cluster_id']}  controller {document['controller']}  voters {voters}"]
    for broker in document["brokers"]:
        rack = f"  rack {broker['rack']}" if broker["rack"] else ""
        lines.append(f"  broker {broker['node_id']}  {broker['host']}:{broker['port']}{rack}")
    lines += [f"  {name} {level['name']}" for name, level in document["features"].items()]
    return "\n".join(lines)


UNHEALTHY: Final = 10  # as of `rpk cluster health`
NO_CONTROLLER: Final = "none answers; the lines below are of the time when one did, nodes may be down since"
STALLED_MS: Final = 900_000  # as the default of transaction.max.timeout.ms, which two-phase commit does not obey


class ClusterHealth(NamedTuple):
    """What was found. `unreachable` is why the cluster could not be asked, or ""."""

    serving: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    controller: int = -1
    leaderless: tuple[TopicPartition, ...] = ()
    under_replicated: tuple[TopicPartition, ...] = ()
    unreachable: str = ""
    stalled_sinks: tuple[str, ...] = ()  # a warning: their transactions hold back partitions for long

    def is_healthy(self, brokers: int) -> bool:
        """Whether nothing is missing and at least this many brokers serve."""
        missing = self.down or self.leaderless or self.under_replicated or self.unreachable
        return not missing and self.controller >= 0 and len(self.serving) >= brokers


@app.command(
    help_epilogue="Examples:\n\n- `barnabas cluster health`\n- `barnabas cluster health --watch`\n"
    "- `barnabas cluster health --exit-when-healthy --within 60 --brokers 3` waits for a cluster that starts.",
)
def health(
    *,
    brokers: Annotated[int, Parameter(help="Healthy only if at least this many brokers serve.")] = 1,
    json_: Json = False,
    watch: Watch = False,
    exit_when_healthy: Annotated[
        bool, Parameter(help="Wait, also for a cluster that starts, and exit with 0 when it is healthy.")
    ] = False,
    within: Annotated[
        float | None, Parameter(help="Seconds that --exit-when-healthy waits at most; then it exits with 10.")
    ] = None,
    every: Every = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Tell whether all brokers serve and every partition has a leader and all its replicas; exits with 10 if not."""
    if within is not None and not (exit_when_healthy and within > 0):
        return wrong_call("cluster health", "--within is a number above 0, with --exit-when-healthy")
    probe = _Probe(connection)

    async def once() -> None:
        found = await probe.read()
        if json_:
            print_json(_document(found, brokers))
        else:
            print(health_text(found, brokers))
        if not found.is_healthy(brokers):
            raise Ended(1 if found.unreachable else UNHEALTHY)

    async def repeatedly() -> None:
        async def read() -> str:
            found = await probe.read()
            if exit_when_healthy and found.is_healthy(brokers):
                raise _Healthy(found)
            return as_json(_document(found, brokers)) if json_ else health_text(found, brokers)

        try:
            async with asyncio.timeout(within):
                await watched(max(every, EVERY_S_MIN), read, in_place=not json_)
        except _Healthy as end:
            print(as_json(_document(end.found, brokers)) if json_ else health_text(end.found, brokers))
        except TimeoutError:
            print(f"barnabas cluster health: not healthy after {within:g} s", file=sys.stderr)
            raise Ended(UNHEALTHY) from None

    async def work() -> None:
        try:
            await (repeatedly() if watch or exit_when_healthy else once())
        finally:
            await probe.close()

    return worked("cluster health", connection, work(), check=not exit_when_healthy)


class _Healthy(Exception):
    """Ends the wait."""

    def __init__(self, found: ClusterHealth) -> None:
        self.found = found
        super().__init__(found)


class _Probe:
    """Asks the cluster again and again, also while it cannot be reached."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: SinkAdmin | None = None

    async def read(self) -> ClusterHealth:
        """What is found now."""
        try:
            if self._admin is None:
                await self._connection.check()
                self._admin = self._connection.new_sink_admin()
                await self._admin.start()
            return await _asked(self._admin)
        except KafkaError as error:
            await self.close()
            return ClusterHealth(unreachable=str(error))

    async def close(self) -> None:
        """Closes the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.stop()


async def _asked(admin: SinkAdmin) -> ClusterHealth:
    brokers = await admin.list_brokers()
    names = await admin.list_topics(include_internal=True)
    topics = (await admin.describe_topics(names, refused={})).values()
    try:
        controller = (await admin.describe_quorum()).leader_id
    except KafkaError:
        controller = -1
    serving = {broker.node_id for broker in brokers if not broker.is_fenced}
    placed = {node for topic in topics for p in topic.partitions for node in p.replicas}
    partitions = [(TopicPartition(topic.name, p.partition), p) for topic in topics for p in topic.partitions]
    return ClusterHealth(
        tuple(sorted(serving)),
        tuple(sorted(({broker.node_id for broker in brokers} | placed) - serving)),
        controller,
        tuple(tp for tp, p in partitions if p.leader < 0),
        tuple(tp for tp, p in partitions if len(p.isr) < len(p.replicas)),
        stalled_sinks=await _stalled_sinks(admin),
    )


async def _stalled_sinks(admin: SinkAdmin) -> tuple[str, ...]:
    long_ago_ms = time.time() * 1000 - STALLED_MS
    try:
        opened = await admin.open_of_sinks()
    except KafkaError:  # its coordinators do not answer, which other lines show
        return ()
    return tuple(name for name, found in opened.items() if found[0].start_time_ms < long_ago_ms)


def _document(found: ClusterHealth, brokers: int) -> dict[str, Any]:
    return {
        "healthy": found.is_healthy(brokers),
        "unreachable": found.unreachable or None,
        "controller": found.controller if found.controller >= 0 else None,
        "brokers": list(found.serving),
        "brokers_down": list(found.down),
        "leaderless_partitions": [place(tp) for tp in found.leaderless],
        "under_replicated_partitions": [place(tp) for tp in found.under_replicated],
        "stalled_sinks": list(found.stalled_sinks),
    }


def health_text(found: ClusterHealth, brokers: int) -> str:
    """The lines of `cluster health`, where `brokers` are wanted."""
    if found.unreachable:
        return f"{marked('healthy: no')}\n  {found.unreachable}"
    wanted = f"; {brokers} are wanted" if len(found.serving) < brokers else ""
    return "\n".join(
        (
            "healthy: yes" if found.is_healthy(brokers) else marked("healthy: no"),
            f"  controller: {found.controller if found.controller >= 0 else NO_CONTROLLER}",
            marked(f"  brokers that serve: {_numbers(found.serving)}{wanted}", RED if wanted else ""),
            marked(f"  brokers down: {_numbers(found.down)}", RED if found.down else ""),
            marked(f"  partitions without a leader: {_partitions(found.leaderless)}", RED if found.leaderless else ""),
            marked(
                f"  under-replicated partitions: {_partitions(found.under_replicated)}",
                RED if found.under_replicated else "",
            ),
            *(marked(f"  warning: {_stalled(name)}", YELLOW) for name in found.stalled_sinks),
        )
    )


def _stalled(sink_id: str) -> str:
    return (
        f"open transactions of sink {printable(sink_id)} hold back read_committed readers for more than "
        f"{duration(STALLED_MS)}: start its query again, or `barnabas txn abort --sink {printable(sink_id)}`"
    )


def _numbers(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _partitions(found: tuple[TopicPartition, ...]) -> str:
    if not found:
        return "none"
    return f"{len(found)} ({named_some(found)})"
