"""PeerTraffic: bytes and requests exchanged with other nodes, for one purpose."""

from __future__ import annotations


class PeerTraffic:
    """Of all connections so far. A request counts when it is written, a response when it is received."""

    __slots__ = ("bytes_in", "bytes_out", "requests", "responses")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.requests = self.responses = 0
