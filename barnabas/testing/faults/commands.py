"""The kit's commands about faults, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from typing import Any

from barnabas.testing.faults.rule import Rule
from barnabas.testing.faults.table import Rewrite
from barnabas.testing.node_host import NodeHost


def install(
    host: NodeHost, number: int, rule: dict[str, Any], matched: int = 0, rewrite: Rewrite | None = None
) -> None:
    """Requests from now on meet the fault. `rewrite` is a function, so only a node in this process can have it."""
    host.interception.faults.install(number, Rule(**rule), rewrite, matched)


def end(host: NodeHost, number: int) -> None:
    """Requests do not meet the fault any more; it still holds those that it has met."""
    host.interception.faults.end(number)


def release(host: NodeHost, number: int) -> None:
    """The requests that the fault holds go on."""
    host.interception.faults.release(number)


def remove(host: NodeHost, number: int) -> None:
    """Requests do not meet the fault any more; those that it holds go on."""
    host.interception.faults.remove(number)
