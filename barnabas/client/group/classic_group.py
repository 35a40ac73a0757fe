"""Shell of a classic membership: sends ClassicMember's requests and heartbeats, runs rebalances.
Eager assignors revoke everything before the join; cooperative ones revoke in the next poll after it (KIP-429).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from barnabas.client.errors import KafkaError
from barnabas.client.group.core.classic_member import ClassicMember, ClassicMemberState, Next
from barnabas.client.group.group import Group, GroupHooks, matching_topics
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode

_JOIN_GRACE_MS = 5_000  # the response to a join may take the rebalance timeout, and this time on the network


class ClassicGroup(Group):
    """The membership of `member`."""

    member: ClassicMember

    def __init__(self, cluster: NetworkClient, member: ClassicMember, hooks: GroupHooks) -> None:
        super().__init__(cluster, member.group_id, hooks)
        self.member = member
        self._counts: dict[str, int] = {}  # partitions of the group's topics when this member was last the leader
        self._join_in_background = False  # a join is in flight, and polls need not wait for it

    @property
    def blocked(self) -> bool:
        return self._changing is not None and not self._join_in_background

    @property
    def due(self) -> bool:
        member = self.member
        return self._changing is not None or member.rejoin_wanted or member.joined is not None or self.error is not None

    def topics(self) -> set[str]:
        return set(self.member.topics)

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        self.pattern = pattern
        if self.member.state is ClassicMemberState.LEFT:
            self.member.rejoin()
        if pattern is not None:
            self.on_cluster_change()
        else:
            self.member.subscribe(topics)

    def on_cluster_change(self) -> None:
        if self.pattern is not None and self._cluster.metadata.updated_ms >= 0:
            self.member.subscribe(matching_topics(self._cluster.metadata, self.pattern))

    def on_commit_refused(self, code: ErrorCode, who: ConsumerGroupMetadata, membership_number: int) -> bool:
        member = self.member
        if member.is_current(who.generation_id):
            if code is ErrorCode.REBALANCE_IN_PROGRESS:
                member.rejoin_wanted = True
            elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                member.on_lost(code)
        return False

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> None:
        member = self.member
        if member.joined is not None:
            self._change(self._complete_rebalance, "rebalanced")
            return
        if self._counts and member.state is ClassicMemberState.STABLE:
            metadata = self._cluster.metadata
            if any(metadata.partition_count(t) != count for t, count in self._counts.items()):
                member.rejoin_wanted = True
        if member.rejoin_wanted and member.topics:
            self._change(self._run_rebalance, "rebalance")

    def _end(self, reason: str) -> tuple[list[TopicPartition], Any]:
        self._stop_changing()
        self._join_in_background = False
        held = list(self.member.assignment)
        self.member.assignment = []
        return held, self.member.leave_request(reason)

    async def _run_rebalance(self) -> None:
        member = self.member
        await self._revoke_before_join()
        self._join_in_background = member.cooperative
        try:
            joined = await self._join()
        finally:
            self._join_in_background = False
        if joined and not member.cooperative:
            await self._complete_rebalance()

    async def _revoke_before_join(self) -> None:
        member = self.member
        held = list(member.assignment)
        going = [tp for tp in held if tp.topic not in member.topics] if member.cooperative and not member.lost else held
        if going:
            if member.lost:
                await self._call_listener(self.listener.on_partitions_lost(going))
            else:
                await self._hooks.before_revoke()
                await self._call_listener(self.listener.on_partitions_revoked(going))
        member.assignment = [tp for tp in held if tp not in going]
        self._hooks.apply(member.assignment)

    async def _complete_rebalance(self) -> None:
        member = self.member
        change = member.take_assignment()
        if change.revoked:
            await self._hooks.before_revoke()
            await self._call_listener(self.listener.on_partitions_revoked(change.revoked))
        if member.lost:
            return  # the next poll reports the loss
        member.on_assignment_applied(change)
        self._hooks.apply(member.assignment)
        await self._call_listener(self.listener.on_partitions_assigned(change.assigned))

    async def _join(self) -> bool:
        """Repeats join and sync until they succeed; False if a poll must handle a loss or an error first."""
        member = self.member
        backoff = Backoff(self._cluster.retry_backoff_ms, self._cluster.rng)
        while True:
            try:
                following = await self._join_once()
            except KafkaError as error:
                member.on_rebalance_failed()
                if not error.retriable:
                    self.error = error
                    return False
                following = Next.FIND_COORDINATOR
            if following is Next.GO_ON or following is Next.LOST:
                return following is Next.GO_ON
            if following is Next.FIND_COORDINATOR:
                self._cluster.forget_coordinator("group", self.group_id)
            await asyncio.sleep(backoff.pause_ms(self._cluster.clock.monotonic_ms()) / 1000)

    async def _join_once(self) -> Next:
        member, clock = self.member, self._cluster.clock
        while True:
            answer = await self._ask(member.join_request(), member.rebalance_timeout_ms + _JOIN_GRACE_MS)
            following = member.on_join(answer, clock.monotonic_ms())
            if following is Next.GO_ON:
                counts = await self._counts_of_group() if member.leads else {}
                answer = await self._ask(member.sync_request(counts), member.rebalance_timeout_ms + _JOIN_GRACE_MS)
                following = member.on_sync(answer, clock.monotonic_ms())
                if following is Next.GO_ON:
                    self._counts = counts
                    self._heartbeat_due.set()
            if following is not Next.AGAIN:
                if following is not Next.GO_ON:
                    member.on_rebalance_failed()
                return following

    async def _counts_of_group(self) -> dict[str, int]:
        cluster = self._cluster
        topics = self.member.group_topics
        cluster.add_topics(topics)
        if any(topic not in cluster.metadata.topics for topic in topics):
            await cluster.fresh_metadata()
        return {topic: cluster.metadata.partition_count(topic) for topic in topics}

    async def _send_heartbeats(self) -> None:
        member, clock = self.member, self._cluster.clock
        backoff = Backoff(self._cluster.retry_backoff_ms, self._cluster.rng)
        while True:
            at = member.heartbeat_at()
            if at is None:
                self._heartbeat_due.clear()
                await self._heartbeat_due.wait()
                continue
            pause = min(at, member.overdue_at()) - clock.monotonic_ms()
            if pause > 0:
                await asyncio.sleep(pause / 1000)
                continue
            now = clock.monotonic_ms()
            if now >= member.overdue_at():
                await self._leave_overdue()
                continue
            generation = member.generation_id
            try:
                answer = await self._ask(member.heartbeat_request(now), member.session_timeout_ms)
                following = member.on_heartbeat(answer, generation, clock.monotonic_ms())
            except KafkaError as error:
                following = Next.FIND_COORDINATOR if error.retriable else Next.GO_ON
                if not error.retriable and member.is_current(generation):
                    self.error = error
                    member.on_lost(error.code or ErrorCode.UNKNOWN_MEMBER_ID)
            if following is Next.GO_ON:
                backoff.reset()
            else:
                if following is Next.FIND_COORDINATOR:
                    self._cluster.forget_coordinator("group", member.group_id)
                member.retry_heartbeat_at(clock.monotonic_ms() + backoff.pause_ms(clock.monotonic_ms()))
            if member.session_expired(clock.monotonic_ms()):
                # Keeps its id: a coordinator that still knows the member would wait for it.
                member.on_lost(ErrorCode.ILLEGAL_GENERATION)
            if self.due:
                self._hooks.on_change()

    async def _leave_overdue(self) -> None:
        member = self.member
        self._warn_overdue()
        request = member.leave_request("the consumer poll timeout has expired")
        member.rejoin()
        await self._send_leave([], request)
