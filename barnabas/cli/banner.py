"""What `barnabas up` shows on a terminal once the cluster serves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from rich.box import HORIZONTALS
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.cluster_security import ADMIN, CLIENT, ClusterSecurity
from barnabas.cli.session import DEFAULT_BOOTSTRAP, Connection


def banner(
    bootstrap: str,
    directory: Path,
    *,
    temporary: bool,
    quorum: Sequence[int],
    metrics: Sequence[str] = (),
    security: ClusterSecurity | None = None,
) -> RenderableType:
    """Returns the banner.

    Args:
        bootstrap: HOST:PORT of every broker, separated by commas.
        directory: the absolute path of the data directory.
        temporary: whether the directory is removed at the end.
        quorum: ports of the nodes' metadata quorum; empty for a single node.
        metrics: HOST:PORT of each node's metrics; empty if they are off.
        security: how the cluster is secured, if it is.
    """
    brokers = bootstrap.count(",") + 1
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("bootstrap", Text(bootstrap, style="bold"))
    facts.add_row("data", Text(str(directory)))
    facts.add_row("", "temporary: removed when this command ends" if temporary else "kept for the next time")
    facts.add_row("logs", Text(str(directory / ("node-1.log" if brokers == 1 else f"node-1.log … node-{brokers}.log"))))
    if quorum:
        facts.add_row("quorum", "ports " + ", ".join(map(str, quorum)))
    if metrics:
        facts.add_row("metrics", Text(" ".join(f"http://{each}/metrics" for each in metrics)))
    if security is not None:
        facts.add_row("security", Text(_described(security)))
        facts.add_row("client files", Text(f"{security.folder}/*.properties"))
    how = _connection(bootstrap, security)
    commands = [
        *([] if security is None else [f"ADMIN={quote(str(security.client_file))}"]),
        f"barnabas topic create orders {how}",
        f"echo hello | barnabas produce orders {how}",
        f"barnabas consume orders --from-beginning {how}",
        f"barnabas cluster {how}",
    ]
    return Panel(
        Group(
            facts,
            "",
            Text("In another terminal:", style="dim"),
            *(Text(f"  {each}".rstrip(), style="cyan", overflow="fold") for each in commands),
            "",
            Text("Ctrl-C stops the cluster.", style="dim"),
        ),
        title=f"[bold green]Kafka is ready: {brokers} broker{'s' if brokers > 1 else ''}[/]",
        title_align="left",
        border_style="green",
        box=HORIZONTALS,  # no sides: a command is copied without them
        padding=(1, 2),
        expand=False,
    )


def _connection(bootstrap: str, security: ClusterSecurity | None) -> str:
    """The option by which commands find the cluster; "" if they find it without one."""
    if security is None:
        first = bootstrap.partition(",")[0]
        return "" if first == "127.0.0.1:9092" and _asked_without_option() == DEFAULT_BOOTSTRAP else f"-b {first}"
    # A variable for the file: a command that is longer than a line of the terminal could not be copied.
    spaced = quote(str(security.client_file)).startswith("'")
    return '--command-config "$ADMIN"' if spaced else "--command-config $ADMIN"


def _asked_without_option() -> str:
    try:
        return Connection(os.environ.get("BARNABAS_BOOTSTRAP")).bootstrap
    except WrongCall:  # a profile that cannot be used
        return ""


def _described(security: ClusterSecurity) -> str:
    parts = ["TLS"] if security.tls else []
    if security.sasl is not None:
        parts.append(f"users {ADMIN} and {CLIENT} ({security.sasl.upper()})")
    if security.acls:
        parts.append("ACLs")
    return ", ".join(parts)
