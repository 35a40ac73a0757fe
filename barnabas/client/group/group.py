"""What the shells of both group protocols share: the listener, leaving, errors for the next poll, the way to the coordinator.

Driven by: the consumer's polls (`tend`), its subscription, refused commits, the cluster's changes.
Emits: assignments through `apply`, calls of the rebalance listener, `on_change` when a poll should look again.

Partitions change hands only inside a poll, as in Kafka's own client: they are never taken away while records of theirs are
being processed, so `metadata` and the records in hand belong together (KIP-447 depends on it). Once begun a change goes on
by itself, also when the poll was cancelled. Heartbeats run all the time.
The classic protocol is in `classic_group`, that of KIP-848 in `consumer_group`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from barnabas.client.errors import KafkaError
from barnabas.client.net.cluster import Cluster, Purpose
from barnabas.client.net.metadata import ClusterMetadata
from barnabas.client.net.transport import Connection
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode

__all__ = ["Group", "GroupHooks", "RebalanceListener", "matching_topics"]

log = logging.getLogger("barnabas.client.group")

_LEAVE_TIMEOUT_MS = 2_000  # a close does not wait longer for the coordinator to take note


class RebalanceListener:
    """Told of partitions coming and going, inside a poll. Override what is needed; exceptions are logged.

    Partitions that stay are not spoken of, unless the assignor is an eager one ("range", "roundrobin", "sticky"): then
    every rebalance revokes everything and assigns what there is.
    `on_partitions_revoked` may still commit: the partitions are this member's until it returns.
    """

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """About to be given up."""

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """In force now, beside what was assigned before; may be empty."""

    async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        """Gone already: the membership ended without this member's doing. Committing is refused."""
        await self.on_partitions_revoked(lost)


class GroupHooks(NamedTuple):
    """What a group calls of its consumer.

    Attributes:
        apply: told the partitions to read from now on; those that were read before keep their positions.
        before_revoke: awaited before partitions are given up, for commits.
        on_change: called when a poll should look again.
    """

    apply: Callable[[Sequence[TopicPartition]], None]
    before_revoke: Callable[[], Awaitable[None]]
    on_change: Callable[[], None]


class Group(ABC):
    """One membership, as the consumer sees it."""

    def __init__(self, cluster: Cluster, group_id: str, hooks: GroupHooks) -> None:
        self.group_id = group_id
        self.listener = RebalanceListener()
        self.error: KafkaError | None = None  # to be raised by the next poll
        self.pattern: re.Pattern[str] | None = None
        self._cluster = cluster
        self._hooks = hooks
        self._beat = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    # -- what the consumer asks ----------------------------------------------------------------------------------------

    fences_reads = False  # whether committed offsets are asked for in the member's name

    @property
    @abstractmethod
    def metadata(self) -> ConsumerGroupMetadata:
        """Who commits."""

    @property
    @abstractmethod
    def tenure(self) -> int:
        """Raised by every membership: what was read in one is not committed in the name of the next."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Whether polls return nothing because partitions are changing hands."""

    @property
    @abstractmethod
    def due(self) -> bool:
        """Whether a poll has more to do than to be noted: begin a change, or see that one is under way."""

    @abstractmethod
    def topics(self) -> set[str]:
        """The topics subscribed to; where the coordinator resolves a pattern, those it has assigned."""

    # -- what the consumer tells ---------------------------------------------------------------------------------------

    @abstractmethod
    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """What is wanted from the next poll on; after a leave that poll joins anew."""

    @abstractmethod
    def on_poll(self, now_ms: int) -> None:
        """A poll that has nothing else to do (`due` is False)."""

    def tend(self, now_ms: int) -> None:
        """A poll looks in: begins what is due.

        Raises:
            KafkaError: the group does not take this member.
        """
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.on_poll(now_ms)
        if self._keeper is None:
            self._keeper = self._cluster.scope.start(self._keep_alive(), name="heartbeat")
        if self._changing is None and self._leaving is None:
            self._begin(now_ms)

    @abstractmethod
    def on_commit_refused(self, code: ErrorCode, who: ConsumerGroupMetadata, tenure: int) -> bool:
        """A commit in the name of `who` was refused; whether it is worth trying again with the present `metadata`."""

    @abstractmethod
    def on_cluster_change(self) -> None:
        """Metadata may be new."""

    async def leave(self, reason: str) -> None:
        """Ends the membership, telling the coordinator where it can be reached quickly."""
        if self._leaving is not None:
            await self._leaving
        held, request = self._end(reason)
        await self._depart(held, request)

    def leave_soon(self, reason: str) -> None:
        """`leave` in the background: the membership is over at once for this side."""
        held, request = self._end(reason)
        if self._leaving is None:
            self._leaving = self._cluster.scope.start(self._depart(held, request), name="leave group")

    # -- for the protocols ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, now_ms: int) -> None:
        """Starts what a poll has to start."""

    @abstractmethod
    async def _keep_alive(self) -> None:
        """Heartbeats for as long as the scope lives."""

    @abstractmethod
    def _end(self, reason: str) -> tuple[list[TopicPartition], Any]:
        """Ends the membership on this side; what was held, and the request that tells the coordinator (or None)."""

    def _change(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Starts the one task in which partitions change hands."""
        self._changing = self._cluster.scope.start(self._changed_by(work), name=name)

    def _stop_changing(self) -> None:
        if self._changing is not None:
            self._changing.cancel()
            self._changing = None

    async def _changed_by(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            if self._changing is asyncio.current_task():
                self._changing = None
            self._beat.set()
            if not self._cluster.closed:
                self._hooks.on_change()

    async def _depart(self, held: list[TopicPartition], request: Any) -> None:
        try:
            if held:
                await self._tell(self.listener.on_partitions_revoked(held))
            if request is not None:
                try:
                    await self._ask(request, _LEAVE_TIMEOUT_MS)
                except KafkaError as error:
                    log.info("group %s was left without telling its coordinator: %s", self.group_id, error)
        finally:
            self._leaving = None
            if not self._cluster.closed:
                self._hooks.on_change()

    async def _connection(self, timeout_ms: int) -> Connection:
        cluster = self._cluster
        patience_ms = min(timeout_ms, cluster.request_timeout_ms)
        node_id = await cluster.find_coordinator("group", self.group_id, timeout_ms=patience_ms)
        return await cluster.ready_connection(node_id, Purpose.COORDINATOR, timeout_ms=patience_ms)

    async def _ask(self, request: Any, timeout_ms: int) -> Any:
        connection = await self._connection(timeout_ms)
        return await connection.request(request, timeout_ms=timeout_ms)

    async def _tell(self, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception:
            log.exception("a rebalance listener of group %s raised", self.group_id)


def matching_topics(metadata: ClusterMetadata, pattern: re.Pattern[str]) -> list[str]:
    """The topics whose whole name matches, internal ones left out."""
    return sorted(
        name for name, info in metadata.topics.items() if not info.is_internal and pattern.fullmatch(name) is not None
    )
