"""The kit's commands about the history, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.testing.history.recorder import RecordingRouter
from barnabas.testing.node_host import NodeHost

__all__ = ["seen", "set_level"]


def set_level(host: NodeHost, level: str, sink: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Notes more or less from now on. `sink` is a function, so only a node in this process can have it."""
    host.recorder.set_level(level, sink)
    if isinstance(host.faults, RecordingRouter):
        host.faults.apply_level()


def seen(host: NodeHost, number: int) -> dict[str, int]:
    """Confirms the events up to a number; returns the number of the last event, and how many were forgotten."""
    host.recorder.seen(number)
    return {"noted": host.recorder.noted, "forgotten": host.recorder.forgotten}
