"""ConnectionHost: what a connection needs from its server."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from barnabas.broker.api.access import Access
from barnabas.broker.api.principal import Principal
from barnabas.broker.api.router import Router
from barnabas.broker.front.quota_enforcement import QuotaEnforcement
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.broker.security.server_login import ServerLogin
from barnabas.loggers import RateLimitedLogger
from barnabas.protocol.framing import FrameReader
from barnabas.protocol.memory_budget import MemoryBudget
from barnabas.protocol.schema import Message

C = TypeVar("C", contravariant=True)  # the connection


class ConnectionHost(Protocol[C]):
    """What a connection needs from its server."""

    reactor: Reactor
    slices: Slices
    router: Router
    client_quotas: QuotaEnforcement
    api_versions_range: tuple[int, int]
    serving: bool  # until it is True every connection is blocked
    rejection_log: RateLimitedLogger

    def access(self, principal: Principal, host: str) -> Access:
        """What a principal may do from a host."""
        ...

    def principal_of(self, listener: str, transport: asyncio.BaseTransport) -> Principal:
        """The principal of a new connection: its certificate's, or ANONYMOUS. Raises BarnabasError if it has none."""
        ...

    def next_number(self) -> int:
        """The number of a new connection."""
        ...

    def frame_reader(self, listener: str) -> FrameReader:
        """Splits the bytes of one connection into frames and limits their size."""
        ...

    def budget_of(self, listener: str) -> MemoryBudget:
        """The memory that a new connection shares with others."""
        ...

    def begin_login(self, connection: C, listener: str, /) -> ServerLogin | None:
        """The login of a new connection; None if its listener needs none."""
        ...

    def unsupported_api_versions(self) -> Message:
        """The answer to ApiVersions in an unknown version."""
        ...

    def on_connected(self, connection: C, /) -> None:
        """The connection was made."""
        ...

    def on_disconnected(self, connection: C, /) -> None:
        """The connection ended."""
        ...
