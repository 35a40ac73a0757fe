"""Shell of a KIP-848 membership: sends heartbeats, assigns and revokes partitions in polls, without a barrier."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from barnabas.client.errors import KafkaError, UnsupportedByBroker
from barnabas.client.group.core.classic_member import Change, Next
from barnabas.client.group.core.consumer_member import ConsumerMember, ConsumerMemberState, unsupported
from barnabas.client.group.group import Group, GroupHooks
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

_HEARTBEAT = ConsumerGroupHeartbeatRequest.API_KEY
_PATTERN_VERSION = 1
_ANSWER_TIMEOUT_MS_MIN = 3_000


class ConsumerGroup(Group):
    """One membership, with a random member id. Arguments as of `ConsumerMember`."""

    fences_reads = True
    member: ConsumerMember

    def __init__(
        self,
        cluster: NetworkClient,
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
    def blocked(self) -> bool:
        return self._changing is not None

    @property
    def due(self) -> bool:
        return self._changing is not None or self.member.due or self.error is not None

    def topics(self) -> set[str]:
        return set(self.member.topics) or {tp.topic for tp in self.member.owned}

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        self.pattern = pattern
        self.member.subscribe(topics, pattern.pattern if pattern is not None else None)
        if self.member.state is ConsumerMemberState.LEFT:
            self.member.forget()
        self._heartbeat_due.set()

    def on_cluster_change(self) -> None:
        """The consumer wakes its polls, which use topic names that are known now."""

    def on_commit_refused(self, code: ErrorCode, who: ConsumerGroupMetadata, membership_number: int) -> bool:
        member = self.member
        if membership_number != member.membership_number:
            return False
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            member.fence()
            self._hooks.on_change()
        if code is not ErrorCode.STALE_MEMBER_EPOCH or member.state is ConsumerMemberState.FENCED:
            return False
        # the heartbeat response with the higher epoch was lost, or has not arrived
        if who.generation_id == member.epoch:
            member.send_full_heartbeat()
            self._heartbeat_due.set()
        return True

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> None:
        member = self.member
        if member.state is ConsumerMemberState.FENCED:
            self._change(self._report_loss, "partitions lost")
        elif member.state is ConsumerMemberState.UNJOINED and member.has_subscription:
            member.join()
            self._heartbeat_due.set()
        else:
            names = self._cluster.metadata.names
            if member.state is ConsumerMemberState.RECONCILING and member.has_unknown_topics(names):
                self._cluster.want_update()
            change = member.change(names)
            if change is not None:
                self._change(partial(self._reconcile, change), "reconcile")

    async def _report_loss(self) -> None:
        held = list(self.member.owned)
        if held:
            await self._call_listener(self.listener.on_partitions_lost(held))
        self._hooks.apply([])
        if self.member.state is ConsumerMemberState.FENCED:
            self.member.forget()

    async def _reconcile(self, change: Change) -> None:
        member = self.member
        if change.revoked:
            await self._hooks.before_revoke()
            if member.state is ConsumerMemberState.FENCED:
                return  # the next poll reports the loss
            await self._call_listener(self.listener.on_partitions_revoked(change.revoked))
            member.on_revoked(change.revoked)
            self._hooks.apply(list(member.owned))
            self._heartbeat_due.set()
        if (change.assigned or not change.revoked) and member.state is not ConsumerMemberState.FENCED:
            taken = member.on_assigned(change.assigned, self._cluster.metadata.names)
            self._hooks.apply(list(member.owned))
            self._heartbeat_due.set()
            await self._call_listener(self.listener.on_partitions_assigned(taken))

    def _end(self, reason: str) -> tuple[list[TopicPartition], Any]:
        self._stop_changing()
        held = list(self.member.owned)
        return held, self.member.leave_request()

    async def _send_heartbeats(self) -> None:
        member, cluster = self.member, self._cluster
        backoff = Backoff(cluster.retry_backoff_ms, cluster.rng)
        while True:
            await self._until_heartbeat()
            if cluster.clock.monotonic_ms() >= member.overdue_at():
                await self._leave_overdue()
                continue
            try:
                following = await self._heartbeat()
            except KafkaError as error:
                following = Next.FIND_COORDINATOR
                if not error.retriable:
                    following = Next.GO_ON
                    self.error = error
                    member.fence()
            if following is Next.GO_ON:
                backoff.reset()
            else:
                if following is Next.FIND_COORDINATOR:
                    cluster.forget_coordinator("group", self.group_id)
                await asyncio.sleep(backoff.pause_ms(cluster.clock.monotonic_ms()) / 1000)
            if self.due:
                self._hooks.on_change()

    async def _until_heartbeat(self) -> None:
        """Waits until the next heartbeat is due, or the member must leave for lack of polls."""
        while True:
            at = self.member.heartbeat_at()
            self._heartbeat_due.clear()
            if at is None:
                await self._heartbeat_due.wait()
                continue
            pause_ms = min(at, self.member.overdue_at()) - self._cluster.clock.monotonic_ms()
            if pause_ms <= 0:
                return
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._heartbeat_due.wait()
            except TimeoutError:
                pass

    async def _heartbeat(self) -> Next:
        member, clock = self.member, self._cluster.clock
        timeout_ms = max(_ANSWER_TIMEOUT_MS_MIN, 2 * member.heartbeat_interval_ms)
        connection = await self._connection(timeout_ms)
        _, highest = connection.core.versions.get(_HEARTBEAT, (0, -1))
        if member.pattern is not None and 0 <= highest < _PATTERN_VERSION:
            raise unsupported(self.group_id, "its brokers do not support patterns: subscribe to topics by name")
        if member.heartbeat_at() is None:
            return Next.GO_ON  # the member has left
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
        self._warn_overdue()
        request = member.leave_request(for_good=False)
        if request is not None and self._leaving is None:
            self._leaving = self._cluster.scope.start(self._send_leave([], request), name="leave group")
        self._hooks.on_change()
