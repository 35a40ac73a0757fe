"""The audit's commands, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from barnabas.errors import LocalProtocolError
from barnabas.testing.audit.watch import WatchedRouter
from barnabas.testing.node_host import NodeHost


def _router(host: NodeHost) -> WatchedRouter:
    if not isinstance(host.faults, WatchedRouter):
        raise LocalProtocolError(f"node {host.node_id} was not started")
    return host.faults


def watch(host: NodeHost, numbers_from: int) -> None:
    """Answers to clients stop from now on, with numbers above `numbers_from`."""
    _router(host).watch(host.emit, numbers_from)


def unwatch(host: NodeHost) -> None:
    """Answers stop no more; those that were stopped are given."""
    _router(host).unwatch()


def settle_answer(host: NodeHost, number: int, answer: str) -> None:
    """What becomes of a stopped answer: "given", "lost" or an error."""
    _router(host).decide(number, answer)
