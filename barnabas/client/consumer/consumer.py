"""Consumer: the asyncio shell over fetcher, group membership and commits.

Driven by: `getmany`, `getone`, `async for`; the cluster's changes; Fetch answers; timers.
Emits: records, commits, rebalance callbacks.

`reader` sends what the fetcher wants; polls only take what is there and wait for changes, so a cancelled poll has taken
nothing. Automatic commits cover the records of earlier polls. Those of the last poll count as processed when the caller polls
again, or when the task that polled closes the consumer while no exception is being handled; otherwise they are not committed.
Positions are in `positions`, commits in `commits`, the membership in `group`.
Follows KIP-98 (read_committed), KIP-227 (sessions), KIP-447, KIP-62; Kafka's client where they leave a choice.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from barnabas.client.consumer.commits import Commits
from barnabas.client.consumer.fetch_state import PartitionState, Reset
from barnabas.client.consumer.fetching import FetchConfig, Fetcher
from barnabas.client.consumer.positions import Positions
from barnabas.client.consumer.reader import Reader
from barnabas.client.errors import ClientClosed, IllegalState, check_topic_name, error_for
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.group.committed_offsets import committed_offsets
from barnabas.client.group.consumer_group import ConsumerGroup
from barnabas.client.group.group import Group, GroupHooks, RebalanceListener, matching_topics
from barnabas.client.group.membership import GroupMember
from barnabas.client.net.cluster import Cluster
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, Record, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.ports import Clock, Network, Rng

__all__ = ["Consumer"]

log = logging.getLogger("barnabas.client.consumer")

Deserializer = Callable[[Any], Any]


class Consumer(Positions):
    """Reads records of topics, as a member of a group or by explicit assignment.

    Use as `async with Consumer("orders", group_id="billing") as consumer: async for record in consumer: …`, or with
    `start` … `stop`, `subscribe` or `assign`, `getmany`.

    Args:
        topics: topics to subscribe to. Without a group_id every partition of theirs is read.
        bootstrap_servers, client_id, request_timeout_ms, retry_backoff_ms, metadata_max_age_ms: as in Producer.
        group_id: the group whose offsets are committed and whose members share partitions.
        group_instance_id: makes the member a static one (KIP-345).
        group_protocol: "classic", or "consumer" where the coordinator assigns (KIP-848): rebalances without a barrier.
        group_remote_assignor: with "consumer", the coordinator's assignor to ask for ("uniform", "range"); None: the broker's choice.
        key_deserializer, value_deserializer: callables applied to bytes.
        fetch_min_bytes, fetch_max_wait_ms: a broker answers when it has so many bytes, or after so long.
        fetch_max_bytes: of an answer, and of what is kept fetched ahead.
        max_partition_fetch_bytes: the same for one partition; a larger batch still comes through.
        max_poll_records: records of one `getmany` at most; None for no limit.
        auto_offset_reset: "latest", "earliest" or "none": where to begin without a committed offset, or out of range.
        enable_auto_commit: with a group_id: polls commit the records of earlier polls, every `auto_commit_interval_ms` and before
            a rebalance; `stop` commits them, too. What the last poll gave out is committed by `stop` only where the task that
            polled calls it and no exception is on its way.
        isolation_level: "read_uncommitted" or "read_committed".
        check_crcs: verify the checksum of every batch.
        client_rack: where this consumer is: it reads from replicas there, where the brokers have racks (KIP-392).
        partition_assignment_strategy: with "classic", names of assignors, most wanted first: "range", "roundrobin", "sticky",
            "cooperative-sticky".
        session_timeout_ms, heartbeat_interval_ms: of a "classic" membership; with "consumer" the broker says.
        max_poll_interval_ms: who does not poll for so long leaves the group until the next poll.
        listener: told of partitions coming and going.
        clock, rng, network: the ports; the real ones by default.

    Raises:
        IllegalState: settings that make no sense.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "barnabas-consumer",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: str = "classic",
        group_remote_assignor: str | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        max_partition_fetch_bytes: int = 1_048_576,
        max_poll_records: int | None = None,
        auto_offset_reset: str = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        isolation_level: str = "read_uncommitted",
        check_crcs: bool = True,
        partition_assignment_strategy: Sequence[str] = ("range", "roundrobin"),
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 20,
        metadata_max_age_ms: int = 300_000,
        client_rack: str = "",
        listener: RebalanceListener | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
    ) -> None:
        if isolation_level not in ("read_uncommitted", "read_committed"):
            raise IllegalState(f"isolation_level={isolation_level!r} is none of 'read_uncommitted', 'read_committed'")
        if auto_offset_reset not in (Reset.EARLIEST, Reset.LATEST, "none"):
            raise IllegalState(f"auto_offset_reset={auto_offset_reset!r} is none of 'latest', 'earliest', 'none'")
        if group_protocol not in ("classic", "consumer"):
            raise IllegalState(f"group_protocol={group_protocol!r} is none of 'classic', 'consumer'")
        if group_remote_assignor is not None and group_protocol != "consumer":
            raise IllegalState(
                "group_remote_assignor goes with group_protocol='consumer'; with 'classic' it is partition_assignment_strategy"
            )
        cluster = Cluster(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            clock=clock,
            rng=rng,
            network=network,
        )
        cluster.listeners.append(self._on_cluster_change)
        fetcher = Fetcher(
            FetchConfig(
                fetch_min_bytes=fetch_min_bytes,
                fetch_max_bytes=fetch_max_bytes,
                fetch_max_wait_ms=fetch_max_wait_ms,
                max_partition_fetch_bytes=max_partition_fetch_bytes,
                read_committed=isolation_level == "read_committed",
                check_crcs=check_crcs,
                auto_offset_reset=auto_offset_reset,
                retry_backoff_ms=retry_backoff_ms,
                rack_id=client_rack,
            ),
            cluster.metadata,
            cluster.rng,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
        )
        super().__init__(cluster, fetcher, Reader(cluster, fetcher, self._reading_member))
        self.group_id = group_id
        self.enable_auto_commit = enable_auto_commit and group_id is not None  # without a group nothing is committed
        self.isolation_level = isolation_level
        self._max_poll_records = max_poll_records
        self._commits = Commits(
            cluster,
            fetcher,
            group=lambda: None if self._assigned_by_hand else self._group,
            who=self.group_metadata,
            interval_ms=auto_commit_interval_ms if self.enable_auto_commit else None,
        )
        self._group: Group | None = None
        if group_id is not None:
            hooks = GroupHooks(self._apply_assignment, self._commits.settle, self._reader.notify)
            if group_protocol == "consumer":
                self._group = ConsumerGroup(
                    cluster,
                    group_id,
                    hooks,
                    group_instance_id=group_instance_id,
                    rack_id=client_rack or None,
                    server_assignor=group_remote_assignor,
                    max_poll_interval_ms=max_poll_interval_ms,
                )
            else:
                member = GroupMember(
                    group_id,
                    group_instance_id=group_instance_id,
                    rack_id=client_rack or None,
                    strategies=partition_assignment_strategy,
                    session_timeout_ms=session_timeout_ms,
                    rebalance_timeout_ms=max_poll_interval_ms,
                    heartbeat_interval_ms=heartbeat_interval_ms,
                )
                self._group = ClassicGroup(cluster, member, hooks)
            self._group.listener = listener or self._group.listener
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._assigned_by_hand = False
        self._missed: dict[tuple[str, int], None] = {}  # what there is not, and the caller was told so; topics with −1
        self._returned: list[PartitionState] = []  # partitions whose records the last poll returned
        self._taker: asyncio.Task[Any] | None = None  # the task that polled last
        self._current: PartitionState | None = None  # the partition that `async for` is in
        if topics:
            self.subscribe(topics)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and takes the first metadata; a group is joined by the first poll.

        Raises:
            KafkaError: no broker can be reached.
        """
        if self._reader.closed:
            raise ClientClosed("the consumer was closed; make a new one")
        if self._started:
            return
        self._started = True
        self._reader.start()
        try:
            await self._cluster.start()
        except BaseException:
            await self._reader.close()
            raise
        self._on_cluster_change()

    async def stop(self) -> None:
        """Commits (where automatic), leaves the group, closes the connections.

        The commit includes what the last poll gave out only where the task that polled calls this, outside the handling of an
        exception: nothing else shows that the records were processed. `commit` before `stop` commits them in any case.
        """
        await self._close(failed=sys.exception() is not None)

    close = stop

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(failed=error is not None)

    # -- what to read --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads these topics, or those whose whole name matches a regular expression; replaces an earlier subscription.

        With `group_protocol="consumer"` the coordinator resolves the expression, in the syntax of RE2.

        Raises:
            IllegalState: neither or both are given, the expression is none, or partitions were assigned by hand.
            InvalidTopic: what is named can be no topic.
        """
        if self._reader.closed:
            raise ClientClosed("the consumer is closed")
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        for name in names:
            check_topic_name(name)
        if bool(names) == (pattern is not None):
            raise IllegalState("subscribe needs topics or a pattern, one of them")
        if self._assigned_by_hand:
            raise IllegalState("partitions were assigned by hand; unsubscribe() first")
        try:
            self._pattern = re.compile(pattern) if pattern is not None else None
        except re.error as error:
            raise IllegalState(f"pattern {pattern!r} is no regular expression: {error}") from error
        self._topics = names
        self._cluster.all_topics = pattern is not None
        if names:
            self._cluster.set_topics(names)
        if self._group is not None:
            self._group.listener = listener or self._group.listener
            self._group.subscribe(names, self._pattern)
        if self._started:
            self._cluster.want_update()
            self._on_cluster_change()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads exactly these partitions, without sharing them in a group; replaces an earlier assignment.

        Raises:
            IllegalState: topics are subscribed to.
            InvalidTopic: what is named can be no topic.
        """
        if self._reader.closed:
            raise ClientClosed("the consumer is closed")
        if self._subscribed:
            raise IllegalState("topics are subscribed to; unsubscribe() first")
        wanted = [TopicPartition(*tp) for tp in partitions]
        for tp in wanted:
            check_topic_name(tp.topic)
        self._assigned_by_hand = bool(wanted)
        self._missed.clear()
        self._cluster.set_topics(dict.fromkeys(tp.topic for tp in wanted))
        self._fetcher.assign(dict.fromkeys(wanted))
        if self._started:
            self._look_for_missing()
        self._reader.wake()

    def unsubscribe(self) -> None:
        """Reads nothing any more, and leaves the group."""
        subscribed = self._subscribed
        self._topics = ()
        self._pattern = None
        self._assigned_by_hand = False
        self._cluster.all_topics = False
        if self._group is not None and self._started and subscribed:
            self._group.leave_soon("the consumer has unsubscribed")
        self._current = None
        self._returned = []
        self._fetcher.assign({})

    def subscription(self) -> set[str]:
        """The topics subscribed to; of a pattern those that are read."""
        if self._pattern is None:
            return set(self._topics)
        return self._group.topics() if self._group is not None else {tp.topic for tp in self._fetcher.partitions}

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """The partitions of a topic; empty where there is none of that name."""
        self._check_open()
        if topic not in self._cluster.metadata.topics:
            self._cluster.add_topics([topic])
            await self._cluster.fresh_metadata()
        return set(range(self._cluster.metadata.partition_count(topic)))

    # -- records -------------------------------------------------------------------------------------------------------

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record[Any, Any]]]:
        """Records that are there, by partition; waits up to `timeout_ms` for the first. Positions move behind them.

        Cancelled, it has taken nothing.

        Args:
            partitions: take only from these; none means from all.
            max_records: at most so many (default `max_poll_records`).

        Raises:
            KafkaError: a fetch, a reset or the group met an error that does not go away by itself.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        limit = self._max_poll_records if max_records is None else max_records
        first = True
        while True:
            self._tend()
            if self._group is None or not self._group.blocked:
                records = self._fetcher.take(limit, partitions)
                if records:
                    self._gave_out([self._fetcher.partitions[tp] for tp in records])
                    self._reader.wake()
                    return records
            if first:
                first = False
                self._reader.wake()
                await asyncio.sleep(0)  # what has come meanwhile is seen even with a timeout of 0
            elif not await self._reader.changed(deadline):
                return {}

    async def getone(self, *partitions: TopicPartition) -> Record[Any, Any]:
        """The next record; waits for it. Cancelled, it has taken nothing."""
        while True:
            self._tend()
            if self._group is None or not self._group.blocked:
                if partitions:
                    taken = self._fetcher.take(1, partitions)
                    for tp, records in taken.items():
                        self._gave_out([self._fetcher.partitions[tp]])
                        return records[0]
                else:
                    found = self._fetcher.take_one()
                    if found is not None:
                        state, record = found
                        self._gave_out([state])
                        self._current = state
                        if not state.ready:
                            self._reader.wake()  # there is room for more
                        return record
            self._reader.wake()
            await self._reader.changed()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Record[Any, Any]:
        state = self._current
        if state is not None and not state.paused:
            index = state.index
            ready = state.ready
            # Inside a decoded batch, and not at its last record: nothing to do but to hand it out. The group is looked
            # after for every record all the same, for this is where a rebalance may begin.
            if 0 < index < len(ready) - 1 and (self._group is None or not self._group.due):
                now = self._clock.monotonic_ms()
                if not self._commits.due(now):
                    if self._group is not None:
                        self._group.on_poll(now)
                    record = ready[index]
                    state.index = index + 1
                    state.safe_position = record.offset
                    state.position = record.offset + 1
                    return record
        try:
            return await self.getone()
        except ClientClosed:
            raise StopAsyncIteration from None

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits offsets (the next to read), by default the position of every assigned partition.

        Cancelled, it may or may not have taken effect; committing again is harmless.

        Raises:
            CommitFailed: the group has rebalanced meanwhile; the partitions may be another member's.
            IllegalState: there is no group_id.
        """
        self._check_open()
        await self._commits.commit(self._chosen(offsets))

    def commit_soon(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> asyncio.Future[None]:
        """`commit` without waiting: by default the positions of now. Commits take effect in order, this one before later ones.

        Returns:
            A future to wait for, or to leave alone: a failure is logged then. Raises as `commit`.
        """
        self._check_open()
        return self._commits.commit_soon(self._chosen(offsets))

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset of a partition; None where there is none."""
        self._check_open()
        tp = TopicPartition(*partition)
        found = await committed_offsets(self._cluster, self.group_metadata(), [tp])
        return found[tp].offset if tp in found else None

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group, for a producer's `send_offsets` (KIP-447).

        Raises:
            IllegalState: there is no group_id.
        """
        if self.group_id is None:
            raise IllegalState("this consumer has no group_id, so it commits nothing")
        if self._group is not None and not self._assigned_by_hand:
            return self._group.metadata
        return ConsumerGroupMetadata(self.group_id)

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _subscribed(self) -> bool:
        return bool(self._topics) or self._pattern is not None

    def _chosen(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self.group_metadata()  # there must be a group
        if offsets is None:
            chosen = self._commits.positions()
        else:
            chosen = {
                TopicPartition(*tp): OffsetAndMetadata(o) if isinstance(o, int) else o for tp, o in offsets.items()
            }
        self._commits.on_chosen(chosen)
        return chosen

    async def _close(self, *, failed: bool) -> None:
        if self._reader.closed:
            return
        if failed or self._taker is not asyncio.current_task():
            self._returned = []
        try:
            if self._started and not self._cluster.closed:
                self._settle_returned()
                await self._commits.settle()
                if self._group is not None:
                    await self._group.leave("the consumer is being closed")
        finally:
            await self._reader.close()

    def _reading_member(self) -> tuple[ConsumerGroupMetadata, bool] | None:
        """In whose name committed offsets are looked up, and whether as a member that can be fenced."""
        if self.group_id is None:
            return None
        fenced = self._group is not None and self._group.fences_reads and not self._assigned_by_hand
        return self.group_metadata(), fenced

    def _tend(self) -> None:
        """What every poll does first."""
        self._check_open()
        self._settle_returned()
        now = self._clock.monotonic_ms()
        if self._group is not None and self._subscribed:
            self._group.tend(now)
        self._commits.tend(now)

    def _gave_out(self, states: list[PartitionState]) -> None:
        """A poll returns records of these partitions. They count as processed when the caller comes back."""
        self._returned = states
        self._taker = asyncio.current_task()

    def _settle_returned(self) -> None:
        """The caller is back: what the last poll returned counts as processed."""
        for state in self._returned:
            state.safe_position = state.position
        self._returned = []

    def _apply_assignment(self, partitions: Sequence[TopicPartition]) -> None:
        """Those that stay are read on as if nothing had happened."""
        self._fetcher.assign(dict.fromkeys(partitions))
        states = self._fetcher.partitions
        self._returned = [state for state in self._returned if states.get(state.tp) is state]
        if self._current is not None and states.get(self._current.tp) is not self._current:
            self._current = None
        self._cluster.add_topics(tp.topic for tp in partitions)
        self._reader.wake()

    def _on_cluster_change(self) -> None:
        """Follows topics that appear, disappear or grow."""
        if self._group is not None:
            if self._subscribed:
                self._group.on_cluster_change()
        elif self._pattern is not None:
            self._assign_all(matching_topics(self._cluster.metadata, self._pattern))
        elif self._topics:
            self._assign_all(self._topics)
        self._look_for_missing()
        self._reader.wake()
        self._reader.notify()

    def _look_for_missing(self) -> None:
        """Tells, once each, of topics that are not there (they may come) and of partitions that a topic does not have."""
        by_hand = self._fetcher.partitions if self._assigned_by_hand else ()
        for topic in dict.fromkeys([*self._topics, *(tp.topic for tp in by_hand)]):
            info = self._cluster.metadata.topics.get(topic)
            if info is None or info.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._missed.pop((topic, -1), None)
            elif (topic, -1) not in self._missed:
                self._missed[topic, -1] = None
                log.warning("there is no topic %r: it is read from when it is created", topic)
        for tp in by_hand:
            count = self._cluster.metadata.partition_count(tp.topic)
            if 0 < count <= tp.partition and tp not in self._missed:
                self._missed[tp] = None
                text = f"the topic has partitions 0 to {count - 1}; assign others"
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self._fetcher.errors.append(error_for(code, text, topic=tp.topic, partition=tp.partition))

    def _assign_all(self, topics: Iterable[str]) -> None:
        """Subscribed without a group: every partition is ours."""
        metadata = self._cluster.metadata
        infos = [metadata.topics[topic] for topic in topics if topic in metadata.topics]
        wanted = dict.fromkeys(TopicPartition(info.name, p.partition) for info in infos for p in info.partitions)
        if wanted.keys() != self._fetcher.partitions.keys():
            self._fetcher.assign(wanted)
