"""A consumer's commits: those it is asked for, and the automatic ones, one after the other.

Driven by: `commit` and `commit_soon`; each poll (`tend`); the group before it gives partitions up; the consumer's close.
Emits: OffsetCommit requests. Automatic commits use `safe_position`, which moves past records when the caller commits
them or polls again after it got them.

Invariants: commits take effect in the order in which they were asked for, whatever is retried; none is on its way while
partitions are given up; none is sent in the name of a later membership than it was asked for in.
A failed automatic commit is logged, not raised: the next one covers it. Follows Kafka's `enable.auto.commit`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from barnabas.client.consumer.fetching import Fetcher
from barnabas.client.errors import CommitFailed, KafkaError
from barnabas.client.group.committed_offsets import commit_offsets
from barnabas.client.group.group import Group
from barnabas.client.net.backoff import Backoff
from barnabas.client.net.cluster import Cluster
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode

__all__ = ["Commits"]

log = logging.getLogger("barnabas.client.consumer")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class _Turns:
    """Who is next: first come, first served. A place is taken at once, also for a task that begins later."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()  # the first has its turn

    def take(self) -> asyncio.Future[None]:
        """A future to wait for; afterwards, or instead, it is given back."""
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
    """The commits of one consumer.

    Args:
        group: whose answers to refusals count; None where the consumer has none, or reads what was assigned by hand.
        who: in whose name is committed.
        interval_ms: between two automatic commits; None switches them off.
    """

    def __init__(
        self,
        cluster: Cluster,
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
        self._due_ms = cluster.clock.monotonic_ms() + (interval_ms or 0)
        self._automatic: asyncio.Task[None] | None = None
        self._turns = _Turns()

    # -- on request ----------------------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit without offsets commits: where every partition is now."""
        return {
            tp: OffsetAndMetadata(state.position, "", state.trail.before(state.position))
            for tp, state in self._fetcher.partitions.items()
            if state.position is not None
        }

    def on_chosen(self, offsets: Offsets) -> None:
        """The caller commits these, so what is before them is processed: an automatic commit does not take them back."""
        for tp, chosen in offsets.items():
            state = self._fetcher.partitions.get(tp)
            if state is not None and state.position is not None and state.safe_position is not None:
                state.safe_position = max(state.safe_position, min(chosen.offset, state.position))

    async def commit(self, offsets: Offsets) -> None:
        """One commit, after those before it.

        Raises:
            CommitFailed: the group has rebalanced meanwhile; the partitions may be another member's.
        """
        await self._in_turn(offsets, self._turns.take(), self._group(), self._tenure())

    def commit_soon(self, offsets: Offsets) -> asyncio.Future[None]:
        """`commit` in the background, before every later one. A failure that nobody asks the future for is logged."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = self._turns.take()
        work = self._in_turn(offsets, turn, self._group(), self._tenure())

        def over(_task: asyncio.Task[None]) -> None:  # also where it was cancelled before it began
            work.close()
            self._turns.give_back(turn)
            outcome.cancel()  # where the client was closed first

        self._cluster.scope.start(self._deliver(work, outcome), name="commit").add_done_callback(over)
        return outcome

    # -- automatic -----------------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> bool:
        """Whether a poll should begin an automatic commit now."""
        return self._interval_ms is not None and now_ms >= self._due_ms and self._automatic is None

    def tend(self, now_ms: int) -> None:
        """A poll looks in: begins a commit in the background where one is due."""
        if self._interval_ms is not None and self.due(now_ms):
            self._due_ms = now_ms + self._interval_ms
            self._automatic = self._cluster.scope.start(self._run(), name="auto commit")

    async def settle(self) -> None:
        """Waits for the commits on their way, then commits what is safe, unless automatic commits are off."""
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
            await self._commit(chosen, self._group(), self._tenure())
        except KafkaError as error:
            log.warning("automatic commit failed: %s", error)
        finally:
            self._turns.give_back(turn)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self.settle()
        finally:
            self._automatic = None

    def _tenure(self) -> int:
        group = self._group()
        return group.tenure if group is not None else 0

    async def _in_turn(self, offsets: Offsets, turn: asyncio.Future[None], group: Group | None, tenure: int) -> None:
        try:
            await turn
            await self._commit(offsets, group, tenure)
        finally:
            self._turns.give_back(turn)

    async def _deliver(self, work: Coroutine[Any, Any, None], outcome: asyncio.Future[None]) -> None:
        try:
            await work
        except KafkaError as error:
            if not outcome.done():
                log.warning("commit failed: %s", error)
                outcome.set_exception(error)
                outcome.exception()  # it was logged: nobody has to ask
        else:
            if not outcome.done():
                outcome.set_result(None)

    def _check_held(self, offsets: Offsets) -> None:
        """The coordinator takes offsets of any partition from any member: those of another's would be read twice."""
        for tp in offsets:
            if tp not in self._fetcher.partitions:
                text = "nothing was committed: the partition is not this member's (any more); who has it goes on from its last commit"
                raise CommitFailed(text, topic=tp.topic, partition=tp.partition)

    async def _commit(self, offsets: Offsets, group: Group | None, tenure: int) -> None:
        backoff = Backoff(self._cluster.retry_backoff_ms, self._cluster.rng)
        clock = self._cluster.clock
        deadline_ms = clock.monotonic_ms() + self._cluster.request_timeout_ms
        while True:
            if group is not None and group.tenure != tenure:
                text = "nothing was committed: the membership that this was read in has ended meanwhile"
                raise CommitFailed(text, code=ErrorCode.UNKNOWN_MEMBER_ID)
            who = self._who()
            if group is not None and who.generation_id >= 0:
                self._check_held(offsets)
            try:
                await commit_offsets(self._cluster, who, offsets)
            except CommitFailed as error:
                again = (
                    group is not None and error.code is not None and group.on_commit_refused(error.code, who, tenure)
                )
                if not again or clock.monotonic_ms() >= deadline_ms:
                    raise
            else:
                return
            await asyncio.sleep(backoff.pause_ms(clock.monotonic_ms()) / 1000)
