"""Commits of a consumer, manual and automatic, in the order of the calls, retries included.
A failed automatic commit is logged and not raised: the next one covers it. No commit is in flight during a revocation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from barnabas.client.committable import committable
from barnabas.client.consumer.core.fetching import Fetcher
from barnabas.client.errors import CommitFailed, KafkaError
from barnabas.client.group.committed_offsets import commit_offsets
from barnabas.client.group.group import Group
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode

log = logging.getLogger("barnabas.client.consumer")

_Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class _Turns:
    """A FIFO lock; a place can be reserved for a task that starts later."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()  # the first one may run

    def take(self) -> asyncio.Future[None]:
        """Reserves the last place. The future completes when it is first; `give_back` it in any case."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._call()
        return turn

    def give_back(self, turn: asyncio.Future[None]) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
            self._call()

    def _call(self) -> None:
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)


class Commits:
    """Commits of one consumer, as the member that `who` returns.

    `group` returns the membership, which decides about retries (None without one); `interval_ms` None: no automatic
    commits.
    """

    def __init__(
        self,
        cluster: NetworkClient,
        fetcher: Fetcher,
        *,
        group: Callable[[], Group | None],
        who: Callable[[], ConsumerGroupMetadata],
        interval_ms: int | None,
    ) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._group = group
        self._who = who
        self._interval_ms = interval_ms
        # Next automatic commit: a waiting poll looks again then.
        self.due_ms = 2**63 - 1 if interval_ms is None else cluster.clock.monotonic_ms() + interval_ms
        self._automatic: asyncio.Task[None] | None = None
        self._turns = _Turns()

    # -- on request ----------------------------------------------------------------------------------------------------

    def choose(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None) -> _Offsets:
        """Offsets to commit, by default the present positions. They also limit automatic commits (`on_chosen`)."""
        chosen = self.positions() if offsets is None else committable(offsets)
        self.on_chosen(chosen)
        return chosen

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: OffsetAndMetadata(state.position, "", state.trail.before(state.position))
            for tp, state in self._fetcher.partitions.items()
            if state.position is not None
        }

    def on_chosen(self, offsets: _Offsets) -> None:
        """Records below these offsets count as processed: no automatic commit goes below them."""
        for tp, chosen in offsets.items():
            state = self._fetcher.partitions.get(tp)
            if state is not None and state.position is not None and state.safe_position is not None:
                state.safe_position = max(state.safe_position, min(chosen.offset, state.position))

    async def commit(self, offsets: _Offsets) -> None:
        """Commits after all earlier commits. Raises CommitFailed after a rebalance."""
        await self._in_turn(offsets, self._turns.take(), self._group(), self._membership_number())

    def commit_soon(self, offsets: _Offsets) -> asyncio.Future[None]:
        """Commits in the background, before all later commits. A failure is logged."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = self._turns.take()
        work = self._in_turn(offsets, turn, self._group(), self._membership_number())

        def over(_task: asyncio.Task[None]) -> None:  # also if the task was cancelled before it began
            work.close()
            self._turns.give_back(turn)
            outcome.cancel()  # no effect unless the client was closed first

        self._cluster.scope.start(self._deliver(work, outcome), name="commit").add_done_callback(over)
        return outcome

    # -- automatic -----------------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> bool:
        return now_ms >= self.due_ms and self._automatic is None

    def commit_if_due(self, now_ms: int) -> None:
        if self._interval_ms is not None and self.due(now_ms):
            self.due_ms = now_ms + self._interval_ms
            self._automatic = self._cluster.scope.start(self._run(), name="auto commit")

    async def before_revoke(self) -> None:
        """Waits for commits in flight, then commits the safe positions (with automatic commits)."""
        turn = self._turns.take()
        try:
            await turn
            if self._interval_ms is None:
                return
            chosen = {
                tp: OffsetAndMetadata(state.safe_position, "", state.trail.before(state.safe_position))
                for tp, state in self._fetcher.partitions.items()
                if state.safe_position is not None
            }
            await self._commit(chosen, self._group(), self._membership_number())
        except KafkaError as error:
            log.warning("automatic commit failed: %s", error)
        finally:
            self._turns.give_back(turn)

    # -- internal --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self.before_revoke()
        finally:
            self._automatic = None

    def _membership_number(self) -> int:
        group = self._group()
        return group.membership_number if group is not None else 0

    async def _in_turn(
        self, offsets: _Offsets, turn: asyncio.Future[None], group: Group | None, membership_number: int
    ) -> None:
        try:
            await turn
            await self._commit(offsets, group, membership_number)
        finally:
            self._turns.give_back(turn)

    async def _deliver(self, work: Coroutine[Any, Any, None], outcome: asyncio.Future[None]) -> None:
        try:
            await work
        except KafkaError as error:
            if not outcome.done():
                log.warning("commit failed: %s", error)
                outcome.set_exception(error)
                outcome.exception()  # marks it as retrieved: the failure is logged
        else:
            if not outcome.done():
                outcome.set_result(None)

    def _check_assigned(self, offsets: _Offsets) -> None:
        """Rejects partitions of other members: the coordinator accepts them, and records would be read twice."""
        for tp in offsets:
            if tp not in self._fetcher.partitions:
                text = "nothing was committed: the partition is not this member's; its present member starts at the last commit"
                raise CommitFailed(text, topic=tp.topic, partition=tp.partition)

    async def _commit(self, offsets: _Offsets, group: Group | None, membership_number: int) -> None:
        backoff = Backoff(self._cluster.retry_backoff_ms, self._cluster.rng)
        clock = self._cluster.clock
        deadline_ms = clock.monotonic_ms() + self._cluster.request_timeout_ms
        while True:
            if group is not None and group.membership_number != membership_number:
                text = "nothing was committed: the membership in which the records were read has ended"
                raise CommitFailed(text, code=ErrorCode.UNKNOWN_MEMBER_ID)
            who = self._who()
            if group is not None and who.generation_id >= 0:
                self._check_assigned(offsets)
            try:
                await commit_offsets(self._cluster, who, offsets)
            except CommitFailed as error:
                again = (
                    group is not None
                    and error.code is not None
                    and group.on_commit_refused(error.code, who, membership_number)
                )
                if not again or clock.monotonic_ms() >= deadline_ms:
                    raise
            else:
                return
            await asyncio.sleep(backoff.pause_ms(clock.monotonic_ms()) / 1000)
