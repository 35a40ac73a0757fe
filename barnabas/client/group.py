"""The shell of a group membership: carries GroupMember's requests, keeps it alive, runs rebalances.

Driven by: the consumer's polls (`tend`), a heartbeat task, the cluster's changes.
Emits: a new assignment through `apply`, calls of the rebalance listener, `on_change` when a poll should look again.

A rebalance begins only inside a poll, as in Kafka's own client: partitions are never taken away while records of theirs are
being processed, so `group_metadata` and the records in hand belong together (KIP-447 depends on it). Once begun it goes on
by itself, also when the poll was cancelled. Heartbeats run all the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from barnabas.client.backoff import Backoff
from barnabas.client.cluster import Cluster, Purpose
from barnabas.client.errors import KafkaError
from barnabas.client.membership import GroupMember, MemberState, Next
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import LeaveGroupRequest

__all__ = ["Group", "RebalanceListener"]

log = logging.getLogger("barnabas.client.group")

_JOIN_GRACE_MS = 5_000  # a join is answered after the rebalance timeout at the latest; then the network's share
_LEAVE_TIMEOUT_MS = 2_000  # a close does not wait longer for the coordinator to take note


class RebalanceListener:
    """Told of partitions coming and going, inside a poll. Override what is needed; exceptions are logged.

    `on_partitions_revoked` may still commit: the partitions are this member's until it returns.
    """

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """About to be given up."""

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """In force now."""

    async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        """Gone already: the membership ended without this member's doing. Committing is refused."""
        await self.on_partitions_revoked(lost)


class Group:
    """One membership.

    Args:
        apply: told the new assignment (empty while a rebalance is under way).
        before_revoke: awaited before partitions are given up, for an automatic commit.
        on_change: called when a poll should look again.
    """

    def __init__(
        self,
        cluster: Cluster,
        member: GroupMember,
        *,
        listener: RebalanceListener,
        apply: Callable[[list[TopicPartition]], None],
        before_revoke: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self.member = member
        self.listener = listener
        self.error: KafkaError | None = None  # to be raised by the next poll
        self._cluster = cluster
        self._apply = apply
        self._before_revoke = before_revoke
        self._on_change = on_change
        self._rebalance: asyncio.Task[None] | None = None
        self._counts: dict[str, int] = {}  # partitions of the group's topics when this member last led
        self._beat = asyncio.Event()
        self._started = False

    @property
    def rebalancing(self) -> bool:
        return self._rebalance is not None

    def tend(self, now_ms: int) -> None:
        """A poll looks in: begins a rebalance where one is due.

        Raises:
            KafkaError: the group does not take this member.
        """
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        member = self.member
        member.on_poll(now_ms)
        if not self._started:
            self._started = True
            self._cluster.scope.start(self._keep_alive(), name="heartbeat")
        if self._counts and member.state is MemberState.STABLE:
            metadata = self._cluster.metadata
            if any(metadata.partition_count(t) != count for t, count in self._counts.items()):
                member.rejoin_wanted = True
        if member.rejoin_wanted and self._rebalance is None and member.topics:
            self._rebalance = self._cluster.scope.start(self._run_rebalance(), name="rebalance")

    async def leave(self, reason: str) -> None:
        """Ends the membership, telling the coordinator where it can be reached quickly."""
        await self._depart(list(self.member.assignment), self._end(reason))

    def leave_soon(self, reason: str) -> None:
        """`leave` in the background: the membership is over at once for this side."""
        self._cluster.scope.start(self._depart(list(self.member.assignment), self._end(reason)), name="leave group")

    def come_back(self) -> None:
        """After a leave: the next poll joins anew."""
        if self.member.state is MemberState.LEFT:
            self.member.rejoin()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _end(self, reason: str) -> LeaveGroupRequest | None:
        if self._rebalance is not None:
            self._rebalance.cancel()
        self.member.assignment = []
        return self.member.leave_request(reason)

    async def _depart(self, held: list[TopicPartition], request: LeaveGroupRequest | None) -> None:
        if held:
            await self._tell(self.listener.on_partitions_revoked(held))
        await self._tell_leave(request)

    async def _tell_leave(self, request: LeaveGroupRequest | None) -> None:
        if request is None:
            return
        try:
            await self._ask(request, _LEAVE_TIMEOUT_MS)
        except KafkaError as error:
            log.info("group %s was left without telling its coordinator: %s", self.member.group_id, error)

    async def _run_rebalance(self) -> None:
        member = self.member
        backoff = Backoff(self._cluster.retry_backoff_ms, self._cluster.rng)
        try:
            await self._give_up()
            while True:
                try:
                    if await self._join_once():
                        break
                except KafkaError as error:
                    member.on_unsettled()
                    if not error.retriable:
                        self.error = error
                        return
                    self._cluster.forget_coordinator("group", member.group_id)
                await asyncio.sleep(backoff.pause_ms(self._cluster.clock.monotonic_ms()) / 1000)
            self._apply(member.assignment)
            await self._tell(self.listener.on_partitions_assigned(list(member.assignment)))
        finally:
            self._rebalance = None
            self._beat.set()
            if not self._cluster.closed:
                self._on_change()

    async def _give_up(self) -> None:
        member = self.member
        held = list(member.assignment)
        if held:
            if member.lost:
                await self._tell(self.listener.on_partitions_lost(held))
            else:
                await self._before_revoke()
                await self._tell(self.listener.on_partitions_revoked(held))
        member.assignment = []  # eager protocol: everything is given up before the join
        self._apply([])

    async def _join_once(self) -> bool:
        """One round of join and sync; whether the member is in. False: pause, then again."""
        member, clock = self.member, self._cluster.clock
        while True:
            answer = await self._ask(member.join_request(), member.rebalance_timeout_ms + _JOIN_GRACE_MS)
            verdict = member.on_join(answer, clock.monotonic_ms())
            if verdict is Next.GO_ON:
                counts = await self._counts_of_group() if member.leads else {}
                answer = await self._ask(member.sync_request(counts), member.rebalance_timeout_ms + _JOIN_GRACE_MS)
                verdict = member.on_sync(answer, clock.monotonic_ms())
                if verdict is Next.GO_ON:
                    self._counts = counts
                    return True
            if verdict is Next.FIND_COORDINATOR:
                self._cluster.forget_coordinator("group", member.group_id)
            if verdict is not Next.AGAIN:
                member.on_unsettled()
                return False

    async def _counts_of_group(self) -> dict[str, int]:
        cluster = self._cluster
        topics = self.member.group_topics
        cluster.add_topics(topics)
        if any(topic not in cluster.metadata.topics for topic in topics):
            await cluster.fresh_metadata()
        return {topic: cluster.metadata.partition_count(topic) for topic in topics}

    async def _keep_alive(self) -> None:
        """Heartbeats for as long as the scope lives."""
        member, clock = self.member, self._cluster.clock
        backoff = Backoff(self._cluster.retry_backoff_ms, self._cluster.rng)
        while True:
            at = member.heartbeat_at()
            if at is None:
                self._beat.clear()
                await self._beat.wait()
                continue
            pause = at - clock.monotonic_ms()
            if pause > 0:
                await asyncio.sleep(pause / 1000)
                continue
            now = clock.monotonic_ms()
            if member.overdue(now):
                await self._leave_overdue()
                continue
            generation = member.generation_id
            try:
                answer = await self._ask(member.heartbeat_request(now), member.session_timeout_ms)
                verdict = member.on_heartbeat(answer, generation, clock.monotonic_ms())
            except KafkaError as error:
                if error.retriable:
                    verdict = Next.FIND_COORDINATOR
                else:
                    verdict = Next.GO_ON
                    self.error = error
                    member.on_lost(error.code or ErrorCode.UNKNOWN_MEMBER_ID)
            if verdict is Next.GO_ON:
                backoff.settle()
            else:
                if verdict is Next.FIND_COORDINATOR:
                    self._cluster.forget_coordinator("group", member.group_id)
                member.beat_again(clock.monotonic_ms() + backoff.pause_ms(clock.monotonic_ms()))
            if member.session_over(clock.monotonic_ms()):
                member.on_lost(ErrorCode.UNKNOWN_MEMBER_ID)
            if member.rejoin_wanted or self.error is not None:
                self._on_change()

    async def _leave_overdue(self) -> None:
        member = self.member
        log.warning(
            "no poll for more than max_poll_interval_ms=%d: leaving group %s until the next one",
            member.rebalance_timeout_ms,
            member.group_id,
        )
        request = member.leave_request("the consumer poll timeout has expired")
        member.rejoin()
        member.lost = True
        await self._tell_leave(request)

    async def _ask(self, request: Any, timeout_ms: int) -> Any:
        cluster = self._cluster
        node_id = await cluster.find_coordinator(
            "group", self.member.group_id, timeout_ms=min(timeout_ms, cluster.request_timeout_ms)
        )
        connection = await cluster.ready_connection(
            node_id, Purpose.COORDINATOR, timeout_ms=min(timeout_ms, cluster.request_timeout_ms)
        )
        return await connection.request(request, timeout_ms=timeout_ms)

    async def _tell(self, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception:
            log.exception("a rebalance listener of group %s raised", self.member.group_id)
