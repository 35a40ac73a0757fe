"""The kit's commands about the history, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.testing.history.last_requests import last_requests
from barnabas.testing.history.recorder import Recorder
from barnabas.testing.node_host import NodeHost


def set_level(
    host: NodeHost,
    level: str,
    sink: Callable[[dict[str, Any]], None] | None = None,
    keep: Callable[[Recorder], None] | None = None,
) -> None:
    """Notes more or less from now on. `sink` and `keep` are functions, so only a node in this process can have them."""
    if keep is not None:
        keep(host.recorder)
    host.recorder.set_level(level, sink)
    if host.node is not None:
        host.interception.apply()


def last(host: NodeHost) -> list[dict[str, Any]]:
    """The last requests of each client."""
    return last_requests(host.recorder)


def seen(host: NodeHost, number: int) -> dict[str, int]:
    """Confirms the events up to a number; returns the number of the last event, and how many were forgotten."""
    host.recorder.seen(number)
    return {"noted": host.recorder.noted, "forgotten": host.recorder.forgotten}
