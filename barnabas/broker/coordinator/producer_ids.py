"""Producer ids of a broker: handed out one by one from a block that the controller allocated (1,000 ids, as in Kafka).

Driven by: `when_available` and `take`.
Emits: requests for a further block.

Who may need an id asks to be called back when one is there, and takes it then or leaves it. What is left of a block when the
broker stops is never handed out.

Invariants: no id is handed out twice; callbacks run in the order they came, each with at least one id to take.
Follows KIP-730 (producer ids from the controller).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from barnabas.errors import BrokerError, InvariantViolated
from barnabas.limits import PRODUCER_ID_BLOCK_SIZE

__all__ = ["ProducerIds"]

Allocate = Callable[[Callable[[int | BrokerError], None]], None]


class ProducerIds:
    """The present block.

    Args:
        allocate: asks the controller for a block; called back with its first id or a refusal.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0  # exclusive
        self._allocating = False
        self._waiting: deque[Callable[[BrokerError | None], None]] = deque()

    def when_available(self, then: Callable[[BrokerError | None], None]) -> None:
        """Calls `then(None)` when an id can be taken, at once where it can; `then(error)` if the controller refuses."""
        if self._next < self._end and not self._waiting:
            then(None)
            return
        self._waiting.append(then)
        self._ask()

    def take(self) -> int:
        """One id; only within a callback of `when_available`.

        Raises:
            InvariantViolated: there is none.
        """
        if self._next >= self._end:
            raise InvariantViolated("a producer id was taken where none is available")
        self._next += 1
        return self._next - 1

    def _ask(self) -> None:
        if not self._allocating:
            self._allocating = True
            self._allocate(self._on_block)

    def _on_block(self, first: int | BrokerError) -> None:
        self._allocating = False
        if isinstance(first, BrokerError):
            refused, self._waiting = self._waiting, deque()
            for then in refused:
                then(first)
            return
        self._next, self._end = first, first + PRODUCER_ID_BLOCK_SIZE
        while self._waiting and self._next < self._end:
            self._waiting.popleft()(None)
        if self._waiting:
            self._ask()
