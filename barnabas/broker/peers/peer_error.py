"""Errors of requests to other nodes (`peers.Peer.send`)."""

from __future__ import annotations

from enum import Enum

from barnabas.errors import BarnabasError


class ProbeResult(Enum):
    """Whether a process listens at the address."""

    REFUSED = "refused"  # the machine answers that nothing listens
    ACCEPTED = "accepted"
    UNREACHABLE = "unreachable"  # no answer, no route or no such name: nothing is known about the process


class PeerErrorKind(Enum):
    """Why a request has no response."""

    REFUSED = "refused"  # not sent: nothing listens at the address
    UNREACHABLE = "unreachable"  # not sent: no connection in time, no Kafka broker there, or the queue is full
    LOST = "lost"  # perhaps sent: the connection ended first
    TIMED_OUT = "timed out"  # perhaps sent: no response in time
    UNSUPPORTED = "unsupported"  # not sent: no common version, or it cannot carry the request


class PeerError(BarnabasError):
    """A request to another node failed without response."""

    def __init__(self, kind: PeerErrorKind, text: str, *, retry_in_ms: int = 0) -> None:
        super().__init__(text)
        self.kind = kind
        self.retry_in_ms = retry_in_ms  # until then another send to the same peer fails at once in the same way

    @property
    def sent(self) -> bool:
        """Whether the request may have had its effect."""
        return self.kind in (PeerErrorKind.LOST, PeerErrorKind.TIMED_OUT)
