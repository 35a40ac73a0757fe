"""`barnabas up`: runs a cluster on this machine until Ctrl-C, one process per node.

Once every broker serves, it prints a banner on a terminal, or one line elsewhere: `ready bootstrap=127.0.0.1:9092,127.0.0.1:9093`.
On stderr it prints the warnings of the nodes, and the command that restarts a node whose process has ended; the other nodes keep running.
A second Ctrl-C kills the nodes that a first one stops. If this process is killed, the nodes end within two seconds, and the
next `barnabas up` removes their temporary directory.

Exit code 0: stopped by Ctrl-C, SIGTERM or a closed terminal. 1: the cluster could not start, or no node is left. 2: the call is wrong.
130: the nodes were killed by a second signal.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TextIO

from cyclopts import Parameter

from barnabas.broker.config.key import host_and_port
from barnabas.broker.controller.core.config_remarks import remarks
from barnabas.cli.cluster_security import ClusterSecurity, Sasl
from barnabas.cli.local_cluster import PORT_MAX, LocalCluster, LocalNode
from barnabas.cli.logs import LogFormat, LogLevel
from barnabas.cli.serve import brokers_refused
from barnabas.cli.session import wrong_call
from barnabas.cli.streams import drop_output
from barnabas.errors import BarnabasError, BrokerError
from barnabas.runtime.cluster_directory import ClusterDirectory, remove_ownerless
from barnabas.runtime.loop import run

BROKERS_MAX: Final = 9  # each is a process on this machine
KILLED: Final = 130
TEMPORARY: Final = "barnabas-up-"  # prefix of directories without --data
# A group of one developer has all its members at once: its first rebalance need not wait for others (Kafka: 3 s).
SETTINGS: Final = ("group.initial.rebalance.delay.ms=0",)
LOGGED: Final = {"trace": "trace", "debug": "debug"}  # level of the files for a level of the screen; otherwise info

_Lab = Annotated[
    str | None,
    Parameter(help="127.0.0.1:PORT for tests: faults, kills and pauses over HTTP; port 0 takes a free one."),
]
_Tls = Annotated[
    bool,
    Parameter(help="TLS on all listeners, with a certificate authority that is made for this cluster."),
]
_SaslOption = Annotated[
    Sasl | None,
    Parameter(help="Clients log in: by SCRAM, or by PLAIN. Makes the users admin and client with random passwords."),
]
_Acl = Annotated[
    bool,
    Parameter(help="Control access by ACLs: only admin may do everything. Needs --sasl or --tls."),
]
_MetricsListen = Annotated[
    str | None,
    Parameter(
        help="HOST:PORT of the first node's /metrics, /livez and /readyz; the others follow. 0 takes free ports."
    ),
]
EVERY_S: Final = 0.25
READ_BYTES_MAX: Final = 256 * 1024  # of one file in one turn
LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_JSON = re.compile(r'\{"time":"[^"]*","level":"([A-Z]+)"')
_SETTING = re.compile(r' kafka\.server: Setting: |"message":"Setting: ')  # `up` itself names ignored settings once


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
    set_: Annotated[tuple[str, ...], Parameter(name="--set", help="key=value for every node; may be repeated.")] = (),
    strict: Annotated[
        bool,
        Parameter(help="Refuse to start if a setting is unknown or has no effect here."),
    ] = False,
    log_level: Annotated[
        LogLevel,
        Parameter(help="Least severe level of the nodes' log lines that are shown; their files have all from info."),
    ] = "warning",
    log_format: LogFormat = "text",
    lab: _Lab = None,
    tls: _Tls = False,
    sasl: _SaslOption = None,
    acl: _Acl = False,
    metrics_listen: _MetricsListen = None,
) -> int:
    """Start a cluster on this machine and serve until Ctrl-C."""
    if brokers_refused("up"):
        return 1
    if (wrong := _wrong_size(brokers, port)) is not None:
        return wrong_call("up", wrong)
    for setting in set_:
        if not setting.partition("=")[1] or not setting.partition("=")[0].strip():
            return wrong_call("up", f"--set {setting}: write key=value, e.g. --set num.partitions=3")
    metrics = None
    if metrics_listen is not None:
        wrong = "leave one of --lab and --metrics-listen out" if lab is not None else host_and_port(metrics_listen)
        if wrong is not None:
            return wrong_call("up", f"--metrics-listen {metrics_listen}: {wrong}")
        host, _, number = metrics_listen.rpartition(":")
        metrics = host, int(number)
    if lab is not None:
        if tls or sasl is not None or acl:
            return wrong_call("up", "--lab: its listeners are plaintext; leave --tls, --sasl and --acl out")
        return _lab(lab, brokers, port, data, set_)
    if acl and sasl is None and not tls:
        return wrong_call("up", "--acl: without --sasl or --tls every client would be the same unknown user; add one")
    logging = ("--log-level", LOGGED.get(log_level, "info"), "--log-format", log_format)
    wanted = _Wanted(brokers, port, (*SETTINGS, *set_), strict, metrics, log_level, logging, tls, sasl, acl)
    if data is not None:
        return run(_Up(data, wanted, temporary=False).run())
    remove_ownerless(TEMPORARY)
    scratch = ClusterDirectory(TEMPORARY)
    try:
        return run(_Up(scratch.path, wanted, temporary=True).run())
    finally:
        scratch.remove()


def _wrong_size(brokers: int, port: int) -> str | None:
    """What is wrong with the number of brokers or their ports."""
    if not 1 <= brokers <= BROKERS_MAX:
        return f"--brokers {brokers}: 1 to {BROKERS_MAX} are possible"
    if port and not 0 < port <= PORT_MAX + 1 - brokers:
        return f"--port {port}: ports {port} to {port + brokers - 1} are not within 1 to {PORT_MAX}"
    return None


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


@dataclass(frozen=True)
class _Wanted:
    """The cluster that a call asks for."""

    brokers: int
    port: int
    settings: tuple[str, ...]
    strict: bool
    metrics: tuple[str, int] | None  # host and port of the first node's metrics
    log_level: LogLevel
    logging: tuple[str, ...]  # options of the nodes
    tls: bool
    sasl: Sasl | None
    acl: bool


class _Up:
    """One run of the command."""

    def __init__(self, directory: Path, wanted: _Wanted, *, temporary: bool) -> None:
        self._directory = directory
        self._wanted = wanted
        self._temporary = temporary
        self._ended: asyncio.Future[int]  # the exit code
        self._killed = False
        self._cluster: LocalCluster | None = None

    async def run(self) -> int:
        """Runs the cluster until its end; returns the exit code."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        try:
            cluster = self._cluster = self._make()
            if sys.stderr.isatty():
                count = len(cluster.nodes)
                _say(f"starting {count} broker{'s' if count > 1 else ''} …")
            starting = asyncio.create_task(cluster.start())
            self._ended.add_done_callback(lambda _: starting.cancel())
            await starting
        except asyncio.CancelledError:
            if not self._ended.done():
                raise
            return self._code()  # stopped during the start; `start` has stopped the nodes that ran
        except (BrokerError, ValueError) as error:
            _say(f"barnabas up: {error}")
            return 2
        except (BarnabasError, OSError) as error:
            _say(f"barnabas up: {error}")
            return 1
        return await self._serve(cluster)

    def _make(self) -> LocalCluster:
        """Makes the cluster and names the settings that have no effect."""
        wanted = self._wanted
        cluster = LocalCluster(
            self._directory,
            brokers=wanted.brokers,
            port=wanted.port,
            settings=wanted.settings,
            metrics=wanted.metrics,
            logging=wanted.logging,
            security=self._security(),
            on_death=self._on_death,
        )
        cluster.secure()
        ignored = remarks(cluster.config(cluster.nodes[0]))  # the others have the same settings
        if wanted.strict and ignored:
            raise ValueError(f"{'; '.join(ignored)} (--strict)")
        for remark in ignored:
            _say(f"barnabas up: {remark}")
        return cluster

    def _security(self) -> ClusterSecurity | None:
        wanted = self._wanted
        if not wanted.tls and wanted.sasl is None:
            return None
        return ClusterSecurity(self._directory.resolve(), wanted.tls, wanted.sasl, wanted.acl)

    async def _serve(self, cluster: LocalCluster) -> int:
        """Says that the cluster serves, and shows the lines of its nodes until the end."""
        lines = NodeLines(self._wanted.log_level.upper(), lambda name, line: _say(f"{name}: {line}"))
        for node in cluster.nodes:
            lines.follow(f"node {node.node_id}", node.log)
        showing = asyncio.create_task(lines.run())
        if sys.stdout.isatty():
            self._show_banner(cluster)
        else:
            metrics = ",".join(node.metrics for node in cluster.nodes) if self._wanted.metrics is not None else ""
            security = cluster.security
            line = f"ready bootstrap={cluster.bootstrap}"
            line += f" metrics={metrics}" if metrics else ""
            line += f" command_config={security.client_file}" if security is not None else ""
            _say(line, sys.stdout)
        await self._ended
        if sys.stderr.isatty() and not self._ended.result():
            _say("stopping; Ctrl-C again kills the nodes at once")
        lines.show_errors_only()  # during a stop the last node warns that no controller answers
        await cluster.stop()
        showing.cancel()
        lines.read()
        return self._code()

    def _show_banner(self, cluster: LocalCluster) -> None:
        from rich.console import Console

        from barnabas.cli.banner import banner

        quorum = [node.quorum_port for node in cluster.nodes] if len(cluster.nodes) > 1 else []
        try:
            Console().print(
                banner(
                    cluster.bootstrap,
                    cluster.directory,
                    temporary=self._temporary,
                    quorum=quorum,
                    metrics=[node.metrics for node in cluster.nodes if node.metrics],
                    security=cluster.security,
                )
            )
        except OSError:
            drop_output()  # the terminal is gone; SIGHUP follows

    def _code(self) -> int:
        return KILLED if self._killed else self._ended.result()

    def _on_signal(self) -> None:
        """Stops the nodes; a second signal kills them."""
        if not self._ended.done():
            self._ended.set_result(0)
        elif self._cluster is not None:
            self._killed = True
            self._cluster.kill_all()

    def _on_death(self, node: LocalNode) -> None:
        cluster = self._cluster
        if cluster is None:
            return
        code = node.process.returncode if node.process is not None else None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        again = shlex.join(["barnabas", *cluster.command(node)])
        _say(f"barnabas up: node {node.node_id} {how}; see {node.log}. To bring it back: {again}")
        if all(each.process is None or each.process.returncode is not None for each in cluster.nodes):
            _say("barnabas up: no node is left")
            if not self._ended.done():
                self._ended.set_result(1)


def _say(line: str, file: TextIO | None = None) -> None:
    """Prints a line, on stderr by default. A terminal or reader that is gone must not stop the cluster uncleanly."""
    try:
        print(line, file=file or sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


class NodeLines:
    """Follows log files.

    Args:
        level: the least severe level that is shown, one of LEVELS. Lines that are no log lines are shown, too.
        show: called with a node's name and a line.
    """

    def __init__(self, level: str, show: Callable[[str, str], None]) -> None:
        self._shown = LEVELS[LEVELS.index(level) :]
        self._show = show
        self._files: dict[Path, tuple[str, int]] = {}  # node's name, bytes read
        self._continues: dict[Path, bool] = {}  # whether a traceback that follows is shown

    def show_errors_only(self) -> None:
        """Shows no warnings any more: the nodes stop."""
        self.read()
        self._shown = LEVELS[LEVELS.index("ERROR") :]

    def follow(self, name: str, file: Path) -> None:
        """Shows what is appended to the file from now on. Does nothing if the file is followed already."""
        if file not in self._files:
            self._files[file] = name, file.stat().st_size if file.exists() else 0

    async def run(self) -> None:
        """Shows new lines until it is cancelled."""
        while True:
            self.read()
            await asyncio.sleep(EVERY_S)

    def read(self) -> None:
        """Shows the complete lines that are new."""
        for file, (name, position) in list(self._files.items()):
            try:
                if file.stat().st_size <= position:
                    continue
                with file.open("rb") as opened:
                    opened.seek(position)
                    data = opened.read(READ_BYTES_MAX)
            except OSError:
                continue
            complete = data.rfind(b"\n") + 1
            if not complete and len(data) == READ_BYTES_MAX:
                complete = len(data)  # a line without end
            self._files[file] = name, position + complete
            for line in data[:complete].decode(errors="replace").splitlines():
                if self._is_shown(file, line):
                    self._show(name, "".join(each if each.isprintable() else "?" for each in line))

    def _is_shown(self, file: Path, line: str) -> bool:
        found = _TEXT.match(line) or _JSON.match(line)
        if found is None:
            return self._continues.get(file, True) if line.startswith("    ") else bool(line.strip())
        self._continues[file] = found[1] in self._shown
        return self._continues[file] and _SETTING.search(line) is None
