"""`barnabas up`: runs a cluster on this machine until Ctrl-C, one process per node.

Prints one line on stdout once every broker serves: `ready bootstrap=127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094`. When
a node's process ends, prints a line on stderr with the command that restarts it; the other nodes keep running.

Exit code 0: stopped by Ctrl-C, SIGTERM or a closed terminal. 1: the cluster could not start, or no node is left. 2: the
call is wrong.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from barnabas.broker.config_key import host_and_port
from barnabas.broker.config_remarks import remarks
from barnabas.cli.local_cluster import ClusterFailed, LocalCluster, LocalNode
from barnabas.errors import BrokerError
from barnabas.runtime.loop import run

__all__ = ["up"]

BROKERS_MAX = 9  # each is a process on this machine


def up(
    *,
    brokers: Annotated[int, Parameter(help="Number of nodes; each is a broker and a voter of the quorum.")] = 3,
    port: Annotated[
        int, Parameter(help="Client port of the first node; the others follow. 0 takes free ports.")
    ] = 9092,
    data: Annotated[
        Path | None,
        Parameter(help="Keep the data here, for the next time [default: a temporary directory, removed at the end]."),
    ] = None,
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", negative=(), help="key=value for every node; may be repeated.")
    ] = (),
    strict: Annotated[
        bool,
        Parameter(negative=(), help="Refuse to start if a setting is unknown or has no effect here."),
    ] = False,
    lab: Annotated[
        str | None,
        Parameter(help="127.0.0.1:PORT for tests: faults, kills and pauses over HTTP; port 0 takes a free one."),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        Parameter(
            help="HOST:PORT of the first node's /metrics, /livez and /readyz; the others follow. 0 takes free ports."
        ),
    ] = None,
) -> int:
    """Start a cluster on this machine and serve until Ctrl-C."""
    if not 1 <= brokers <= BROKERS_MAX:
        print(f"barnabas up: --brokers {brokers}: 1 to {BROKERS_MAX} are possible", file=sys.stderr)
        return 2
    for setting in set_:
        if not setting.partition("=")[1] or not setting.partition("=")[0].strip():
            print(f"barnabas up: --set {setting}: write key=value, e.g. --set num.partitions=3", file=sys.stderr)
            return 2
    metrics = None
    if metrics_listen is not None:
        wrong = "leave one of --lab and --metrics-listen out" if lab is not None else host_and_port(metrics_listen)
        if wrong is not None:
            print(f"barnabas up: --metrics-listen {metrics_listen}: {wrong}", file=sys.stderr)
            return 2
        host, _, number = metrics_listen.rpartition(":")
        metrics = host, int(number)
    if lab is not None:
        return _lab(lab, brokers, port, data, set_)
    if data is not None:
        return run(_up(data, brokers, port, set_, strict, metrics))
    with tempfile.TemporaryDirectory(prefix="barnabas-") as scratch:
        return run(_up(Path(scratch), brokers, port, set_, strict, metrics))


def _lab(address: str, brokers: int, port: int, data: Path | None, settings: tuple[str, ...]) -> int:
    from barnabas.cli.lab import lab_port, run_lab

    try:
        if data is not None:
            raise ValueError(
                "--lab and --data: a cluster for tests keeps its data in a temporary directory; leave one out"
            )
        return run_lab(brokers, port, settings, lab_port(address))
    except ValueError as error:
        print(f"barnabas up: {error}", file=sys.stderr)
        return 2


async def _up(
    directory: Path,
    brokers: int,
    port: int,
    settings: tuple[str, ...],
    strict: bool,
    metrics: tuple[str, int] | None,
) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def on_death(node: LocalNode) -> None:
        code = node.process.returncode if node.process is not None else None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        again = shlex.join(["barnabas", *cluster.command(node)])
        print(f"barnabas up: node {node.node_id} {how}; see {node.log}. To bring it back: {again}", file=sys.stderr)
        if all(each.process is None or each.process.returncode is not None for each in cluster.nodes):
            print("barnabas up: no node is left", file=sys.stderr)
            end(1)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end, 0)
    try:
        cluster = LocalCluster(
            directory, brokers=brokers, port=port, settings=settings, metrics=metrics, on_death=on_death
        )
        ignored = remarks(cluster.config(cluster.nodes[0]))  # the others have the same settings
        if strict and ignored:
            raise ValueError(f"{'; '.join(ignored)} (--strict)")
        for remark in ignored:
            print(f"barnabas up: {remark}", file=sys.stderr)
        starting = asyncio.create_task(cluster.start())
        ended.add_done_callback(lambda _: starting.cancel())
        await starting
    except asyncio.CancelledError:
        if not ended.done():
            raise
        return ended.result()  # stopped during the start; `start` has stopped the nodes that ran
    except (BrokerError, ValueError) as error:
        print(f"barnabas up: {error}", file=sys.stderr)
        return 2
    except (ClusterFailed, OSError) as error:
        print(f"barnabas up: {error}", file=sys.stderr)
        return 1
    shown = "" if metrics is None else f" metrics={','.join(node.metrics for node in cluster.nodes)}"
    print(f"ready bootstrap={cluster.bootstrap}{shown}", flush=True)
    code = await ended
    await cluster.stop()
    return code
