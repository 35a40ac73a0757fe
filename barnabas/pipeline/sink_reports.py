"""Reports of a sink about its batches, from Spark's Python processes to a `QueryMetrics` on the same host.

Spark has no metrics of Python sinks, and a sink commits in a process of its own. It sends a report as one datagram to
the Unix socket of its query, in a directory of this user. Without a listener the report is dropped.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SIZE_MAX = 4096


class SinkReport(NamedTuple):
    """Times in ms of one batch, and how many parts were aborted since the last one."""

    batch: int = -1
    start: int = 0  # fence, the last decision, orphans
    decision: int = 0
    commit: int = 0  # phase two
    aborted: int = 0


NOTHING = SinkReport()


def _address(query: str) -> Path:
    user = getattr(os, "getuid", int)()
    return Path(tempfile.gettempdir(), f"barnabas-{user}", query[:18])  # a socket's path has at most 104 bytes


def send(query: str, report: SinkReport) -> None:
    """Sends a report without waiting, or drops it."""
    with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(json.dumps(report).encode(), str(_address(query)))


class Mailbox:
    """Receives the reports about one query."""

    def __init__(self, query: str) -> None:
        self._socket: socket.socket | None = None
        self._path = _address(query)
        with suppress(OSError, AttributeError):  # AttributeError: Windows
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.unlink(missing_ok=True)  # of a driver that was killed
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(str(self._path))

    def take(self) -> list[SinkReport]:
        """All reports that have arrived."""
        found: list[SinkReport] = []
        with suppress(OSError, ValueError, TypeError):
            while self._socket is not None:
                found.append(SinkReport(*json.loads(self._socket.recv(_SIZE_MAX))))
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._path.unlink(missing_ok=True)
