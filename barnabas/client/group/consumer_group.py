"""The shell of a membership whose coordinator assigns (KIP-848): carries the heartbeats, moves partitions inside polls.

Driven by: the consumer's polls, a heartbeat task, the cluster's changes. The rules are in `consumer_membership`.
Emits: ConsumerGroupHeartbeat requests, and what `group` says.

There is no barrier: partitions that stay are read on while others come and go, and polls are held up only while commits and the
listener are awaited. What has been given up is acknowledged at once, by a heartbeat out of turn.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from barnabas.client.errors import KafkaError, UnsupportedByBroker
from barnabas.client.group.consumer_membership import ConsumerMember, ConsumerMemberState, unsupported
from barnabas.client.group.group import Group, GroupHooks
from barnabas.client.group.membership import Change, Next
from barnabas.client.net.backoff import Backoff
from barnabas.client.net.cluster import Cluster
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

__all__ = ["ConsumerGroup"]

log = logging.getLogger("barnabas.client.group")

_HEARTBEAT = ConsumerGroupHeartbeatRequest.API_KEY
_PATTERN_VERSION = 1
_ANSWER_TIMEOUT_MS_MIN = 3_000


class ConsumerGroup(Group):
    """One membership. Arguments as of `ConsumerMember`; the member's id is drawn here."""

    fences_reads = True

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        hooks: GroupHooks,
        *,
        group_instance_id: str | None = None,
        rack_id: str | None = None,
        server_assignor: str | None = None,
        max_poll_interval_ms: int = 300_000,
    ) -> None:
        super().__init__(cluster, group_id, hooks)
        self.member = ConsumerMember(
            group_id,
            base64.urlsafe_b64encode(cluster.rng.uuid()).rstrip(b"=").decode(),
            group_instance_id=group_instance_id,
            rack_id=rack_id,
            server_assignor=server_assignor,
            rebalance_timeout_ms=max_poll_interval_ms,
        )

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        return self.member.metadata

    @property
    def tenure(self) -> int:
        return self.member.tenure

    @property
    def blocked(self) -> bool:
        return self._changing is not None

    @property
    def due(self) -> bool:
        return self._changing is not None or self.member.due or self.error is not None

    def topics(self) -> set[str]:
        return set(self.member.topics) or {tp.topic for tp in self.member.held}

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        self.pattern = pattern
        self.member.subscribe(topics, pattern.pattern if pattern is not None else None)
        if self.member.state is ConsumerMemberState.LEFT:
            self.member.forget()
        self._beat.set()

    def on_poll(self, now_ms: int) -> None:
        self.member.on_poll(now_ms)

    def on_cluster_change(self) -> None:
        """A poll that waits looks again (the consumer wakes it): names of assigned topics may be known now."""

    def on_commit_refused(self, code: ErrorCode, who: ConsumerGroupMetadata, tenure: int) -> bool:
        member = self.member
        if tenure != member.tenure:
            return False
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            member.fence()
            self._hooks.on_change()
        if code is not ErrorCode.STALE_MEMBER_EPOCH or member.state is ConsumerMemberState.FENCED:
            return False
        if who.generation_id == member.epoch:  # the answer that raised the epoch was lost, or is still to come
            member.say_all()
            self._beat.set()
        return True

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> None:
        member = self.member
        if member.state is ConsumerMemberState.FENCED:
            self._change(self._lose, "partitions lost")
        elif member.state is ConsumerMemberState.UNJOINED and member.wants:
            member.join()
            self._beat.set()
        else:
            names = self._cluster.metadata.names
            if member.state is ConsumerMemberState.RECONCILING and member.unresolved(names):
                self._cluster.want_update()
            change = member.change(names)
            if change is not None:
                self._change(partial(self._reconcile, change), "reconcile")

    async def _lose(self) -> None:
        held = list(self.member.held)
        if held:
            await self._tell(self.listener.on_partitions_lost(held))
        self._hooks.apply([])
        if self.member.state is ConsumerMemberState.FENCED:
            self.member.forget()

    async def _reconcile(self, change: Change) -> None:
        member = self.member
        if change.revoked:
            await self._hooks.before_revoke()
            if member.state is ConsumerMemberState.FENCED:
                return  # the next poll tells of the loss
            await self._tell(self.listener.on_partitions_revoked(change.revoked))
            member.give_up(change.revoked)
            self._hooks.apply(list(member.held))
            self._beat.set()
        if (change.assigned or not change.revoked) and member.state is not ConsumerMemberState.FENCED:
            taken = member.take_over(change.assigned, self._cluster.metadata.names)
            self._hooks.apply(list(member.held))
            self._beat.set()
            await self._tell(self.listener.on_partitions_assigned(taken))

    def _end(self, reason: str) -> tuple[list[TopicPartition], Any]:
        self._stop_changing()
        held = list(self.member.held)
        return held, self.member.leave_request()

    async def _keep_alive(self) -> None:
        member, cluster = self.member, self._cluster
        backoff = Backoff(cluster.retry_backoff_ms, cluster.rng)
        while True:
            await self._until_heartbeat()
            if cluster.clock.monotonic_ms() >= member.overdue_at():
                await self._leave_overdue()
                continue
            try:
                verdict = await self._heartbeat()
            except KafkaError as error:
                verdict = Next.FIND_COORDINATOR
                if not error.retriable:
                    verdict = Next.GO_ON
                    self.error = error
                    member.fence()
            if verdict is Next.GO_ON:
                backoff.reset()
            else:
                if verdict is Next.FIND_COORDINATOR:
                    cluster.forget_coordinator("group", self.group_id)
                await asyncio.sleep(backoff.pause_ms(cluster.clock.monotonic_ms()) / 1000)
            if self.due:
                self._hooks.on_change()

    async def _until_heartbeat(self) -> None:
        """Waits for the time of the next heartbeat, or for that of leaving."""
        while True:
            at = self.member.heartbeat_at()
            self._beat.clear()
            if at is None:
                await self._beat.wait()
                continue
            pause_ms = min(at, self.member.overdue_at()) - self._cluster.clock.monotonic_ms()
            if pause_ms <= 0:
                return
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._beat.wait()
            except TimeoutError:
                pass

    async def _heartbeat(self) -> Next:
        member, clock = self.member, self._cluster.clock
        timeout_ms = max(_ANSWER_TIMEOUT_MS_MIN, 2 * member.heartbeat_interval_ms)
        connection = await self._connection(timeout_ms)
        _, highest = connection.core.versions.get(_HEARTBEAT, (0, -1))
        if member.pattern is not None and 0 <= highest < _PATTERN_VERSION:
            raise unsupported(self.group_id, "its brokers do not resolve patterns: subscribe to topics by name")
        if member.heartbeat_at() is None:
            return Next.GO_ON  # left meanwhile
        request = member.heartbeat_request(clock.monotonic_ms())
        try:
            answer = await connection.request(request, timeout_ms=timeout_ms)
        except UnsupportedByBroker as error:
            raise unsupported(self.group_id, error.message) from error
        except KafkaError:
            member.on_unanswered(request)
            raise
        return member.on_heartbeat(request, answer, clock.monotonic_ms())

    async def _leave_overdue(self) -> None:
        member = self.member
        log.warning(
            "no poll for more than max_poll_interval_ms=%d: leaving group %s until the next one",
            member.rebalance_timeout_ms,
            self.group_id,
        )
        request = member.leave_request(for_good=False)
        if request is not None and self._leaving is None:
            self._leaving = self._cluster.scope.start(self._depart([], request), name="leave group")
        self._hooks.on_change()
