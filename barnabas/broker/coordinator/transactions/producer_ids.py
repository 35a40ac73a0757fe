"""Producer ids of a broker, in blocks of 1,000 from the controller (KIP-730)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from barnabas.broker.api.call import Done
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import PRODUCER_ID_BLOCK_SIZE
from barnabas.loggers import logger

log = logger("kafka.coordinator.transaction")

PREFETCH_BELOW = PRODUCER_ID_BLOCK_SIZE // 10  # requests the next block when fewer ids are left, as in Kafka


class ProducerIds:
    """The producer ids of a node. No id is used twice; callbacks run in the order of their requests, each with an id to take.

    `allocate` requests a block from the controller; its `Done` gets the first id. The next block is prefetched: the controller may just be
    elected. Unused ids of a block are lost when the broker stops.
    """

    def __init__(self, allocate: Callable[[Done[int]], None]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0  # exclusive
        self._following: int | None = None  # first id of the next block
        self._allocating = False
        self._waiting: deque[Done[None]] = deque()

    def when_available(self, then: Done[None], *, lowest: int = 0) -> None:
        """Calls `then` when `take` has an id; with COORDINATOR_LOAD_IN_PROGRESS, which clients retry, if the controller refuses.

        Ids below `lowest` are used only if the controller refuses a block.
        """
        if self._next < lowest and self._following is not None:
            self._start_next_block()
        if lowest <= self._next < self._end and not self._waiting:
            then(None)
            return
        self._waiting.append(then)
        self._request_block()

    def take(self) -> int:
        """Only within a callback of `when_available`; else raises InvariantViolated."""
        if self._next >= self._end:
            raise InvariantViolated("a producer id was taken when none was available")
        self._next += 1
        taken = self._next - 1
        if self._next >= self._end:
            self._start_next_block()
        if self._following is None and self._end - self._next < PREFETCH_BELOW:
            self._request_block()
        return taken

    def _start_next_block(self) -> None:
        if self._following is not None:
            self._next, self._end = self._following, self._following + PRODUCER_ID_BLOCK_SIZE
            self._following = None

    def _request_block(self) -> None:
        if not self._allocating:
            self._allocating = True
            self._allocate(self._on_block)

    def _on_block(self, first: int | BrokerError) -> None:
        self._allocating = False
        if isinstance(first, BrokerError):
            log.info("Controller gives no producer ids: error=%s", first)
            refused, self._waiting = self._waiting, deque()
            for then in refused:
                error = BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids: {first}")
                then(error if self._next >= self._end else None)
            return
        self._following = first
        if self._next >= self._end or self._waiting:
            self._start_next_block()
        while self._waiting and self._next < self._end:
            self._waiting.popleft()(None)
        if self._waiting:
            self._request_block()
