"""The kit's commands about faults, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from typing import Any

from barnabas.errors import LocalProtocolError
from barnabas.testing.faults.router import FaultyRouter, Rewrite
from barnabas.testing.faults.rule import Rule
from barnabas.testing.node_host import NodeHost


def _router(host: NodeHost) -> FaultyRouter:
    if host.faults is None:
        raise LocalProtocolError(f"node {host.node_id} was not started")
    return host.faults


def install(
    host: NodeHost, number: int, rule: dict[str, Any], matched: int = 0, rewrite: Rewrite | None = None
) -> None:
    """Requests from now on meet the fault. `rewrite` is a function, so only a node in this process can have it."""
    _router(host).install(number, Rule(**rule), rewrite, matched)


def end(host: NodeHost, number: int) -> None:
    """Requests do not meet the fault any more; it still holds those that it has met."""
    _router(host).end(number)


def release(host: NodeHost, number: int) -> None:
    """The requests that the fault holds go on."""
    _router(host).release(number)


def remove(host: NodeHost, number: int) -> None:
    """Requests do not meet the fault any more; those that it holds go on."""
    _router(host).remove(number)
