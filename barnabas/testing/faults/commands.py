"""Fault commands inside a node's event loop."""

from __future__ import annotations

from typing import Any

from barnabas.testing.faults.rule import Rule
from barnabas.testing.faults.table import Rewrite
from barnabas.testing.node_host import NodeHost


def install(
    host: NodeHost, number: int, rule: dict[str, Any], matched: int = 0, rewrite: Rewrite | None = None
) -> None:
    """`rewrite` is a function: only for nodes in this process."""
    host.interception.faults.install(number, Rule(**rule), rewrite, matched)


def end(host: NodeHost, number: int) -> None:
    """Stops matching; held requests stay held."""
    host.interception.faults.end(number)


def release(host: NodeHost, number: int) -> None:
    """Serves the held requests."""
    host.interception.faults.release(number)


def remove(host: NodeHost, number: int) -> None:
    """Stops matching and serves the held requests."""
    host.interception.faults.remove(number)
