"""`barnabas cluster`: shows the cluster and its brokers. `barnabas cluster health` says whether all partitions are served."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from barnabas.cli.cluster_health import health
from barnabas.cli.render import Json, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, Ended, client_command
from barnabas.client.admin import Admin
from barnabas.protocol.metadata_versions import metadata_version_name

METADATA_VERSION = "metadata.version"

app = App(
    name="cluster",
    help_epilogue="Examples:\n\n- `barnabas cluster`\n"
    "- `barnabas cluster --brokers 3 --timeout 2 -b localhost:9092,localhost:9093`\n"
    "- `barnabas cluster health --exit-when-healthy` waits until every partition is served by all its replicas.",
)
app.command(
    health,
    name="health",
    help_epilogue="Examples:\n\n- `barnabas cluster health`\n- `barnabas cluster health --watch`\n"
    "- `barnabas cluster health --exit-when-healthy --within 60 --brokers 3` waits for a cluster that starts.",
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
        document = await _document(admin)
    if json_:
        print_json(document)
    else:
        print(_text(document))
    serving = len(document["brokers"])
    if serving < brokers:
        sys.stdout.flush()
        print(f"barnabas cluster: {serving} brokers serve, {brokers} are wanted", file=sys.stderr)
        raise Ended(1)


async def _document(admin: Admin) -> dict[str, Any]:
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


def _text(document: dict[str, Any]) -> str:
    voters = ", ".join(map(str, document["voters"]))
    lines = [f"cluster {document['cluster_id']}  controller {document['controller']}  voters {voters}"]
    for broker in document["brokers"]:
        rack = f"  rack {broker['rack']}" if broker["rack"] else ""
        lines.append(f"  broker {broker['node_id']}  {broker['host']}:{broker['port']}{rack}")
    lines += [f"  {name} {level['name']}" for name, level in document["features"].items()]
    return "\n".join(lines)
