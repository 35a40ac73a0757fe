"""`barnabas cluster`: shows the cluster and its brokers. With --brokers it is also a health check for scripts."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked

__all__ = ["cluster"]


def cluster(
    *,
    brokers: Annotated[int, Parameter(help="Fail unless at least this many brokers serve.")] = 1,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show the cluster: its id, the brokers that serve, its features. Exits with 1 if no broker answers.

    Examples:

    `barnabas cluster`

    `barnabas cluster --brokers 3 --timeout 2 -b localhost:9092,localhost:9093`
    """
    serving = 0

    async def work() -> None:
        nonlocal serving
        async with connection.admin() as admin:
            cluster_id, _, found = await admin.describe_cluster()
            quorum = await admin.describe_quorum()
            features = await admin.features()
        serving = len(found)
        print(f"cluster {cluster_id}  controller {quorum.leader_id}  voters {', '.join(map(str, quorum.voters))}")
        for broker in sorted(found):
            rack = f"  rack {broker.rack}" if broker.rack else ""
            print(f"  broker {broker.node_id}  {broker.host}:{broker.port}{rack}")
        for name, level in sorted(features.items()):
            print(f"  {name} {level}")

    code = worked("cluster", connection, work())
    if code == 0 and serving < brokers:
        print(f"barnabas cluster: {serving} brokers serve, {brokers} are wanted", file=sys.stderr)
        return 1
    return code
