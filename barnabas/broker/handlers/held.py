"""Waiters for requests that the transaction coordinator may hold (`coordinator/transactions/holding.py`).

Used by AddPartitionsToTxn and by requests that add partitions implicitly: Produce ≥ 12 and TxnOffsetCommit ≥ 5. A
client's held request has had no effect yet, so it blocks the later requests of its connection, and is dropped when the
connection closes. A broker's request serves many producers: its later requests continue, but answers keep their order.
So a broker's request is held only briefly.
"""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.api.call import AnyPending

BROKER_HOLD_MS_MAX = 20  # several times a completion; then the requesting broker retries


class PendingWaiter:
    """Ties a held request to its Pending, which may be made only after the request has to wait."""

    __slots__ = ("_drop", "_pending")

    wait_ms_max: int | None = None

    def __init__(self, pending: AnyPending | None = None) -> None:
        self._pending = pending
        self._drop: Callable[[], None] | None = None

    def attach(self, pending: AnyPending) -> None:
        """Sets the Pending of a request that waits."""
        self._pending = pending
        if self._drop is not None:
            self.on_held(self._drop)

    def on_held(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        if self._pending is not None:
            self._pending.blocks = True
            self._pending.on_closed = drop

    def is_gone(self) -> bool:
        return self._pending is not None and self._pending.resolved


class BrokerWaiter:
    """Waiter of one transaction in a broker's AddPartitionsToTxn."""

    __slots__ = ("_pending",)

    wait_ms_max: int | None = BROKER_HOLD_MS_MAX

    def __init__(self, pending: AnyPending) -> None:
        self._pending = pending

    def on_held(self, drop: Callable[[], None]) -> None:
        """Does nothing: the end of the hold checks `is_gone`."""

    def is_gone(self) -> bool:
        return self._pending.resolved
