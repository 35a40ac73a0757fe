"""Consumer: the asyncio shell over fetcher, group membership and offsets.

Driven by: `getmany`, `getone`, `async for`; the cluster's changes; Fetch answers; timers.
Emits: records, commits, rebalance callbacks.

`reader` sends what the fetcher wants; polls only take what is there and wait for changes, so a cancelled poll has taken
nothing. Automatic commits cover what earlier polls returned, never what the present one does: a record
counts as processed when its taker comes back for the next. Separate connections for fetches and for the coordinator.
Follows KIP-98 (read_committed), KIP-227 (sessions), KIP-447, KIP-62; Kafka's client where they leave a choice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from barnabas.client.cluster import Cluster
from barnabas.client.commits import AutoCommit
from barnabas.client.errors import (
    ClientClosed,
    CommitFailed,
    IllegalState,
    RequestTimedOut,
)
from barnabas.client.fetch_state import PartitionState, Reset
from barnabas.client.fetching import FetchConfig, Fetcher
from barnabas.client.group import Group, RebalanceListener
from barnabas.client.membership import GroupMember
from barnabas.client.offsets import EARLIEST, LATEST, commit_offsets, committed_offsets, list_offsets
from barnabas.client.reader import Reader
from barnabas.client.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    TopicPartition,
)
from barnabas.errors import ErrorCode
from barnabas.ports import Clock, Network, Rng

__all__ = ["Consumer"]

log = logging.getLogger("barnabas.client.consumer")

Deserializer = Callable[[Any], Any]


class Consumer:
    """Reads records of topics, as a member of a group or by explicit assignment.

    Use as `async with Consumer("orders", group_id="billing") as consumer: async for record in consumer: …`, or with
    `start` … `stop`, `subscribe` or `assign`, `getmany`.

    Args:
        topics: topics to subscribe to. Without a group_id every partition of theirs is read.
        bootstrap_servers, client_id, request_timeout_ms, retry_backoff_ms, metadata_max_age_ms: as in Producer.
        group_id: the group whose offsets are committed and whose members share partitions.
        group_instance_id: makes the member a static one (KIP-345).
        key_deserializer, value_deserializer: callables applied to bytes.
        fetch_min_bytes, fetch_max_wait_ms: a broker answers when it has so many bytes, or after so long.
        fetch_max_bytes: of an answer, and of what is kept fetched ahead.
        max_partition_fetch_bytes: the same for one partition; a larger batch still comes through.
        max_poll_records: records of one `getmany` at most; None for no limit.
        auto_offset_reset: "latest", "earliest" or "none": where to begin without a committed offset, or out of range.
        enable_auto_commit: commit every `auto_commit_interval_ms`, at rebalances and at the end (with a group_id).
        isolation_level: "read_uncommitted" or "read_committed".
        check_crcs: verify the checksum of every batch.
        partition_assignment_strategy: names of assignors, most wanted first: "range", "roundrobin".
        session_timeout_ms, heartbeat_interval_ms, max_poll_interval_ms: of the membership.
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
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            clock=clock,
            rng=rng,
            network=network,
        )
        self._clock = self._cluster.clock
        self._cluster.listeners.append(self._on_cluster_change)
        self._fetcher = Fetcher(
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
            self._cluster.metadata,
            self._cluster.rng,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
        )
        self._reader = Reader(self._cluster, self._fetcher, lambda: self.group_metadata() if self.group_id else None)
        self.group_id = group_id
        self._max_poll_records = max_poll_records
        self._auto_commit = AutoCommit(
            self._cluster,
            self._fetcher,
            auto_commit_interval_ms if enable_auto_commit and group_id is not None else None,
            self._commit,
        )
        self._listener = listener or RebalanceListener()
        self._member: GroupMember | None = None
        self._group: Group | None = None
        if group_id is not None:
            self._member = GroupMember(
                group_id,
                group_instance_id=group_instance_id,
                strategies=partition_assignment_strategy,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=max_poll_interval_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
            )
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._assigned_by_hand = False
        self._started = False
        self._returned: list[PartitionState] = []  # whose records the last poll returned
        self._current: PartitionState | None = None  # the partition that `async for` is in
        if topics:
            self.subscribe(topics)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and takes the first metadata; a group is joined by the first poll.

        Raises:
            KafkaError: no broker can be reached.
        """
        if self._started:
            return
        if self._reader.closed:
            raise ClientClosed("the consumer was closed; make a new one")
        self._started = True
        self._reader.start()
        try:
            await self._cluster.start()
        except BaseException:
            await self._reader.close()
            raise
        self._on_cluster_change()

    async def stop(self) -> None:
        """Commits (where automatic), leaves the group, closes the connections."""
        if self._reader.closed:
            return
        try:
            if self._started and not self._cluster.closed:
                self._settle_returned()
                await self._auto_commit.now()
                if self._group is not None:
                    await self._group.leave("the consumer is being closed")
        finally:
            await self._reader.close()

    close = stop

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # -- what to read --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads these topics, or those whose name matches a regular expression; replaces an earlier subscription.

        Raises:
            IllegalState: neither or both are given, or partitions were assigned by hand.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if bool(names) == (pattern is not None):
            raise IllegalState("subscribe needs topics or a pattern, one of them")
        if self._assigned_by_hand:
            raise IllegalState("partitions were assigned by hand; unsubscribe() first")
        if listener is not None:
            self._listener = listener
        self._topics = names
        self._pattern = re.compile(pattern) if pattern is not None else None
        self._cluster.all_topics = pattern is not None
        if names:
            self._cluster.set_topics(names)
        if self._member is not None:
            if self._group is None:
                self._group = Group(
                    self._cluster,
                    self._member,
                    listener=self._listener,
                    apply=self._apply_assignment,
                    before_revoke=self._auto_commit.now,
                    on_change=self._reader.notify,
                )
            self._group.listener = self._listener
            self._group.come_back()
            if names:
                self._member.subscribe(names)
        if self._started:
            self._cluster.want_update()
            self._on_cluster_change()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads exactly these partitions, without sharing them in a group; replaces an earlier assignment.

        Raises:
            IllegalState: topics are subscribed to.
        """
        if self._topics or self._pattern is not None:
            raise IllegalState("topics are subscribed to; unsubscribe() first")
        wanted = [TopicPartition(*tp) for tp in partitions]
        self._assigned_by_hand = bool(wanted)
        self._cluster.set_topics(dict.fromkeys(tp.topic for tp in wanted))
        self._fetcher.assign(dict.fromkeys(wanted))
        self._reader.wake()

    def unsubscribe(self) -> None:
        """Reads nothing any more, and leaves the group."""
        self._topics = ()
        self._pattern = None
        self._assigned_by_hand = False
        self._cluster.all_topics = False
        if self._member is not None and self._group is not None:
            self._member.topics = ()
            if self._started:
                self._group.leave_soon("the consumer has unsubscribed")
        self._current = None
        self._returned = []
        self._fetcher.assign({})

    def assignment(self) -> set[TopicPartition]:
        """The partitions read at the moment."""
        return set(self._fetcher.partitions)

    def subscription(self) -> set[str]:
        """The topics subscribed to."""
        return set(self._member.topics if self._pattern is not None and self._member is not None else self._topics)

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
    ) -> dict[TopicPartition, list[Record]]:
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
            if self._group is None or not self._group.rebalancing:
                records = self._fetcher.take(limit, partitions)
                if records:
                    self._returned = [self._fetcher.partitions[tp] for tp in records]
                    self._reader.wake()
                    return records
            if first:
                first = False
                self._reader.wake()
                await asyncio.sleep(0)  # what has come meanwhile is seen even with a timeout of 0
            elif not await self._reader.changed(deadline):
                return {}

    async def getone(self, *partitions: TopicPartition) -> Record:
        """The next record; waits for it. Cancelled, it has taken nothing."""
        while True:
            self._tend()
            if self._group is None or not self._group.rebalancing:
                if partitions:
                    taken = self._fetcher.take(1, partitions)
                    for tp, records in taken.items():
                        self._returned = [self._fetcher.partitions[tp]]
                        return records[0]
                else:
                    found = self._fetcher.take_one()
                    if found is not None:
                        state, record = found
                        self._returned = [state]
                        self._current = state
                        if not state.ready:
                            self._reader.wake()  # there is room for more
                        return record
            self._reader.wake()
            await self._reader.changed()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Record:
        state = self._current
        if state is not None and not state.paused:
            index = state.index
            ready = state.ready
            # Inside a decoded batch, and not at its last record: nothing to do but to hand it out. The group is looked
            # after for every record all the same, for this is where a rebalance may begin.
            if 0 < index < len(ready) - 1 and (self._group is None or not self._group.member.rejoin_wanted):
                now = self._clock.monotonic_ms()
                if not self._auto_commit.due(now):
                    if self._group is not None:
                        self._group.member.on_poll(now)
                    record = ready[index]
                    state.index = index + 1
                    state.safe_position = record.offset
                    state.position = record.offset + 1
                    return record
        try:
            return await self.getone()
        except ClientClosed:
            raise StopAsyncIteration from None

    # -- positions -----------------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record of the partition is the first at or after `offset` (≥ 0)."""
        if offset < 0:
            raise IllegalState(f"offset {offset} is negative; seek_to_beginning and seek_to_end find theirs")
        self._state(partition)
        self._fetcher.seek(TopicPartition(*partition), offset)
        self._reader.wake()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """To the first offset of the log; all assigned partitions where none is named."""
        self._seek_by(Reset.EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Behind the last record (under read_committed: the last stable one)."""
        self._seek_by(Reset.LATEST, partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """To the group's committed offsets."""
        self._seek_by(Reset.COMMITTED, partitions)

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record to be returned; looked up where it is not known yet.

        Raises:
            NoOffsetForPartition, RequestTimedOut: it cannot be found (in time).
        """
        deadline = self._clock.monotonic_ms() + (self._cluster.request_timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            state = self._state(partition)
            if state.position is not None:
                return state.position
            if self._fetcher.errors:
                raise self._fetcher.errors.pop(0)
            self._reader.wake()
            if not await self._reader.changed(deadline):
                raise RequestTimedOut("no position in time", topic=state.tp.topic, partition=state.tp.partition)

    def pause(self, *partitions: TopicPartition) -> None:
        """Polls return nothing of these partitions; positions and the membership stay."""
        for tp in partitions:
            self._state(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends a pause."""
        for tp in partitions:
            state = self._state(tp)
            state.paused = False
            state.hurried = True
        self._reader.wake()

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._fetcher.partitions.items() if state.paused}

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark in the last answer: the offset after the last committed record. None before the first."""
        found = self._state(partition).high_watermark
        return found if found >= 0 else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """The last stable offset in the last answer: what read_committed may read is below it."""
        found = self._state(partition).last_stable_offset
        return found if found >= 0 else None

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after a timestamp (ms since the Unix epoch); None where there is none."""
        self._check_open()
        found = await list_offsets(self._cluster, timestamps, read_committed=self._fetcher.config.read_committed)
        return {tp: found[tp] if found[tp].offset >= 0 else None for tp in timestamps}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition's log."""
        return await self._bounds(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record; under read_committed the last stable offset."""
        return await self._bounds(partitions, LATEST)

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits offsets (the next to read), by default the position of every assigned partition.

        Cancelled, it may or may not have taken effect; committing again is harmless.

        Raises:
            CommitFailed: the group has rebalanced meanwhile; the partitions may be another member's.
            IllegalState: there is no group_id.
        """
        self._check_open()
        if offsets is None:
            chosen = {
                tp: OffsetAndMetadata(state.position, "", state.record_epoch)
                for tp, state in self._fetcher.partitions.items()
                if state.position is not None
            }
        else:
            chosen = {
                TopicPartition(*tp): OffsetAndMetadata(o) if isinstance(o, int) else o for tp, o in offsets.items()
            }
        await self._commit(chosen)

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
        if self._group is not None and self._member is not None and not self._assigned_by_hand:
            return self._member.metadata
        return ConsumerGroupMetadata(self.group_id)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._reader.closed:
            raise ClientClosed("the consumer is closed")
        if not self._started:
            raise ClientClosed("the consumer is not started: await start(), or use it in 'async with'")

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._fetcher.partitions.get(TopicPartition(*partition))
        if state is None:
            raise IllegalState(
                "the partition is not assigned to this consumer", topic=partition[0], partition=partition[1]
            )
        return state

    def _seek_by(self, reset: str, partitions: Iterable[TopicPartition]) -> None:
        for tp in list(partitions) or list(self._fetcher.partitions):
            self._state(tp)
            self._fetcher.seek(TopicPartition(*tp), None, reset)
        self._reader.wake()

    async def _bounds(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_open()
        wanted = {TopicPartition(*tp): which for tp in partitions}
        found = await list_offsets(self._cluster, wanted, read_committed=self._fetcher.config.read_committed)
        return {tp: found[tp].offset for tp in wanted}

    def _tend(self) -> None:
        """What every poll does first."""
        self._check_open()
        self._settle_returned()
        now = self._clock.monotonic_ms()
        if self._group is not None and (self._topics or self._pattern is not None):
            self._group.tend(now)
        self._auto_commit.tend(now)

    def _settle_returned(self) -> None:
        """The caller is back: what the last poll returned counts as processed."""
        for state in self._returned:
            state.safe_position = state.position
        self._returned = []

    def _apply_assignment(self, partitions: list[TopicPartition]) -> None:
        self._current = None
        self._returned = []
        self._fetcher.assign(dict.fromkeys(partitions))
        self._cluster.add_topics(tp.topic for tp in partitions)
        self._reader.wake()

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        group = self.group_metadata()
        try:
            await commit_offsets(self._cluster, group, offsets)
        except CommitFailed as error:
            member = self._member
            if member is not None and self._group is not None and member.generation_id == group.generation_id:
                if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                    member.rejoin_wanted = True
                elif not self._group.rebalancing and error.code is not None:
                    member.on_lost(error.code)
            raise

    def _on_cluster_change(self) -> None:
        """Follows topics that appear, disappear or grow."""
        metadata = self._cluster.metadata
        if self._pattern is not None:
            pattern = self._pattern
            names = sorted(
                name for name, info in metadata.topics.items() if not info.is_internal and pattern.search(name)
            )
            if self._member is not None:
                self._member.subscribe(names)
            else:
                self._assign_all(names)
        elif self._topics and self._member is None:
            self._assign_all(self._topics)
        self._reader.wake()
        self._reader.notify()

    def _assign_all(self, topics: Iterable[str]) -> None:
        """Subscribed without a group: every partition is ours."""
        metadata = self._cluster.metadata
        infos = [metadata.topics[topic] for topic in topics if topic in metadata.topics]
        wanted = dict.fromkeys(TopicPartition(info.name, p.partition) for info in infos for p in info.partitions)
        if wanted.keys() != self._fetcher.partitions.keys():
            self._fetcher.assign(wanted)
