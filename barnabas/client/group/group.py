"""Group membership, common to both protocols: rebalance listener, leaving, errors for the next poll.
Partitions change only inside a poll, as in Kafka's client, so `metadata` and the caller's records match (KIP-447).
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from barnabas.client.errors import KafkaError
from barnabas.client.group.core.classic_member import ClassicMember
from barnabas.client.group.core.consumer_member import ConsumerMember
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.core.metadata import ClusterMetadata
from barnabas.client.net.transport import Connection
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode

log = logging.getLogger("barnabas.client.group")

_LEAVE_TIMEOUT_MS = 2_000  # time limit of the LeaveGroup request in a close


class RebalanceListener:
    """Called inside a poll when partitions are assigned or revoked. Override as needed; exceptions are logged.

    The calls contain only changing partitions; an eager assignor ("range", "roundrobin", "sticky") revokes all and
    assigns anew. `on_partitions_revoked` may still commit: the partitions belong to this member until it returns.
    """

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Called before these partitions are revoked."""

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Called after these partitions were assigned, in addition to those that stay; may be empty."""

    async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        """Called after these partitions were lost: the coordinator ended the membership. Commits are rejected."""
        await self.on_partitions_revoked(lost)


class GroupHooks(NamedTuple):
    """Calls of a group to its consumer: `apply` sets the partitions to read, `on_change` wakes polls."""

    apply: Callable[[Sequence[TopicPartition]], None]
    before_revoke: Callable[[], Awaitable[None]]
    on_change: Callable[[], None]


class Group(ABC):
    """One group membership, as the consumer uses it."""

    member: ClassicMember | ConsumerMember

    def __init__(self, cluster: NetworkClient, group_id: str, hooks: GroupHooks) -> None:
        self.group_id = group_id
        self.listener = RebalanceListener()
        self.error: KafkaError | None = None  # raised by the next poll
        self.pattern: re.Pattern[str] | None = None
        self._cluster = cluster
        self._hooks = hooks
        self._heartbeat_due = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    # -- state for the consumer ----------------------------------------------------------------------------------------

    fences_reads = False  # whether committed offsets are read with member id and epoch

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        """The member that commits."""
        return self.member.metadata

    @property
    def membership_number(self) -> int:
        """Increases with every membership: offsets read in one membership are not committed in a later one."""
        return self.member.membership_number

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Whether polls return nothing because of a rebalance."""

    @property
    @abstractmethod
    def due(self) -> bool:
        """Whether a poll must call `begin_poll`, and not only `on_poll`."""

    @abstractmethod
    def topics(self) -> set[str]:
        """The subscribed topics; the assigned ones if the coordinator resolves a pattern."""

    # -- events from the consumer ---------------------------------------------------------------------------------------

    @abstractmethod
    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Applies from the next poll on; after a leave that poll joins again."""

    def on_poll(self, now_ms: int) -> None:
        """A poll that needs nothing else (`due` is False)."""
        self.member.on_poll(now_ms)

    def begin_poll(self, now_ms: int) -> None:
        """Starts due heartbeats and rebalances, first in every poll. Raises KafkaError if rejected."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.on_poll(now_ms)
        if self._heartbeats is None:
            self._heartbeats = self._cluster.scope.start(self._send_heartbeats(), name="heartbeat")
        if self._changing is None and self._leaving is None:
            self._begin(now_ms)

    @abstractmethod
    def on_commit_refused(self, code: ErrorCode, who: ConsumerGroupMetadata, membership_number: int) -> bool:
        """A commit by `who` was rejected; returns whether to retry it with the present `metadata`."""

    @abstractmethod
    def on_cluster_change(self) -> None:
        """The metadata may have changed."""

    async def leave(self, reason: str) -> None:
        """Ends the membership, with a request to the coordinator if it answers quickly."""
        if self._leaving is not None:
            await self._leaving
        held, request = self._end(reason)
        await self._send_leave(held, request)

    def leave_soon(self, reason: str) -> None:
        held, request = self._end(reason)
        if self._leaving is None:
            self._leaving = self._cluster.scope.start(self._send_leave(held, request), name="leave group")

    def end_tasks(self) -> None:
        self._stop_changing()
        if self._heartbeats is not None:
            self._heartbeats.cancel()

    # -- for the protocols ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, now_ms: int) -> None:
        """Starts a due join or change of the assignment."""

    @abstractmethod
    async def _send_heartbeats(self) -> None:
        """Sends heartbeats until the client is closed."""

    @abstractmethod
    def _end(self, reason: str) -> tuple[list[TopicPartition], Any]:
        """Ends the membership; returns its partitions, and the request for the coordinator (or None)."""

    def _change(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Starts the task that assigns and revokes partitions; at most one. It survives a cancelled poll."""
        self._changing = self._cluster.scope.start(self._run_change(work), name=name)

    def _stop_changing(self) -> None:
        if self._changing is not None:
            self._changing.cancel()
            self._changing = None

    async def _run_change(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            if self._changing is asyncio.current_task():
                self._changing = None
            self._heartbeat_due.set()
            if not self._cluster.closed:
                self._hooks.on_change()

    async def _send_leave(self, held: list[TopicPartition], request: Any) -> None:
        try:
            if held:
                await self._call_listener(self.listener.on_partitions_revoked(held))
            if request is not None:
                try:
                    await self._ask(request, _LEAVE_TIMEOUT_MS)
                except KafkaError as error:
                    log.info(
                        "the coordinator of group %s could not be told that this member leaves: %s",
                        self.group_id,
                        error,
                    )
        finally:
            self._leaving = None
            if not self._cluster.closed:
                self._hooks.on_change()

    def _warn_overdue(self) -> None:
        log.warning(
            "no poll for more than max_poll_interval_ms=%d: leaving group %s until the next one",
            self.member.rebalance_timeout_ms,
            self.group_id,
        )

    async def _connection(self, timeout_ms: int) -> Connection:
        cluster = self._cluster
        patience_ms = min(timeout_ms, cluster.request_timeout_ms)
        node_id = await cluster.find_coordinator("group", self.group_id, timeout_ms=patience_ms)
        return await cluster.ready_connection(node_id, Purpose.COORDINATOR, timeout_ms=patience_ms)

    async def _ask(self, request: Any, timeout_ms: int) -> Any:
        connection = await self._connection(timeout_ms)
        return await connection.request(request, timeout_ms=timeout_ms)

    async def _call_listener(self, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception:
            log.exception("a rebalance listener of group %s raised", self.group_id)


def matching_topics(metadata: ClusterMetadata, pattern: re.Pattern[str]) -> list[str]:
    return sorted(
        name for name, info in metadata.topics.items() if not info.is_internal and pattern.fullmatch(name) is not None
    )
