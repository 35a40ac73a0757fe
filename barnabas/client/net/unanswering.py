"""Connections to leaders and coordinators that do not answer, and when their requests are repeated elsewhere.

A process that was stopped keeps its connections open, so a request to it would wait for the whole request timeout. Other brokers take
over meanwhile: once fresh metadata says so, the connection is dropped and its requests go to the new leader or coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from barnabas.client.errors import BrokerUnreachable
from barnabas.client.net.transport import Connection

__all__ = ["UNANSWERED_MS", "Unanswering"]

UNANSWERED_MS: Final = 2_000  # without a byte from a broker that owes an answer


class Unanswering:
    """The connections on which an answer has been owed for UNANSWERED_MS."""

    def __init__(self) -> None:
        self._connections: dict[Connection, None] = {}

    def found(self, connections: Iterable[Connection], leading: set[int]) -> Iterator[Connection]:
        """Notes and yields those to leaders and coordinators on which an answer is overdue; the caller asks who has taken over.

        Args:
            leading: node ids of the known leaders and coordinators.
        """
        for connection in list(connections):
            if connection.unanswered_ms >= UNANSWERED_MS and connection.node_id in leading:
                self._connections[connection] = None
                connection.silent = True
                yield connection

    def drop_replaced(self, leading: set[int], updated_ms: int, now_ms: int) -> None:
        """Drops the connections to brokers that lead nothing any more, so that their requests are repeated elsewhere.

        Args:
            leading: as of `found`.
            updated_ms: when the metadata was received that `leading` is from, by the monotonic clock.
        """
        for connection in list(self._connections):
            unanswered_ms = connection.unanswered_ms
            if unanswered_ms < UNANSWERED_MS:
                del self._connections[connection]
            elif updated_ms > now_ms - unanswered_ms and connection.node_id not in leading:
                del self._connections[connection]
                text = f"{connection.host}:{connection.port} does not answer, and other brokers have taken over"
                connection.drop(BrokerUnreachable(text, broker=connection.node_id))
