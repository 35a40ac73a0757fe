"""Consumer: public interface over fetcher, positions, subscription, group membership and commits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Self, Unpack

from barnabas.client.committable import checked_partition, committable, searchable
from barnabas.client.consumer.commits import Commits
from barnabas.client.consumer.core.config import ConsumerConfig
from barnabas.client.consumer.core.fetch_state import PartitionState, Reset
from barnabas.client.consumer.core.fetching import Fetcher
from barnabas.client.consumer.reader import Reader
from barnabas.client.consumer.subscription import GroupProtocols, Subscription
from barnabas.client.errors import ClientClosed, IllegalState, RequestTimedOut
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.group.committed_offsets import committed_offsets
from barnabas.client.group.consumer_group import ConsumerGroup
from barnabas.client.group.core.classic_member import ClassicMember
from barnabas.client.group.group import GroupHooks, RebalanceListener
from barnabas.client.loop_affinity import LoopBound, bound_to_loop
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.offsets import EARLIEST, LATEST, list_offsets
from barnabas.client.net.security_arguments import SecurityArguments
from barnabas.client.types import (
    AssignorName,
    AutoOffsetReset,
    ConsumerGroupMetadata,
    GroupProtocol,
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ReadKeyT,
    ReadValueT,
    Record,
    TopicPartition,
)
from barnabas.network_port import Network
from barnabas.ports import Clock, Rng

_NEVER_MS = 2**63 - 1
_AGAIN_MS = 100  # a poll that waits looks again at most ten times a second, however short its settings are


@bound_to_loop()
class Consumer(LoopBound, Generic[ReadKeyT, ReadValueT]):
    """Reads records of topics, as a member of a group or by explicit assignment.

    Use as `async with Consumer("orders", group_id="billing") as consumer: async for record in consumer: …`, or with
    `start` … `stop`, `subscribe` or `assign`, `getmany`. Names that end in `_ms` are milliseconds, sizes are bytes.

    Coroutines raise ClientClosed before `start` and after `stop`, and other KafkaErrors after retries.

    Args:
        topics: topics to subscribe to. Without a group_id all their partitions are read.
        bootstrap_servers, client_id, request_timeout_ms, retry_backoff_ms, metadata_max_age_ms: as in Producer.
        group_id: the group that shares the partitions and owns the committed offsets.
        group_instance_id: makes the member static (KIP-345).
        group_protocol: "classic"; "consumer": the coordinator assigns, and rebalances have no barrier (KIP-848); or
            "auto": "consumer" if the cluster and the group's members allow it, else "classic".
        group_remote_assignor: with "consumer", the coordinator's assignor ("uniform", "range"); None: the broker's
            default.
        key_deserializer, value_deserializer: callables for the bytes of keys and values; None stays None.
        fetch_min_bytes, fetch_max_wait_ms: a broker answers with this many bytes, or after this time.
        fetch_max_bytes: largest response in bytes, and limit of all prefetched records.
        max_partition_fetch_bytes: the same for one partition; a larger batch is still returned.
        max_poll_records: largest number of records of one `getmany`; None for no limit.
        auto_offset_reset: "latest", "earliest" or "none": position without a committed offset, or if it is out of
            range.
        enable_auto_commit: with a group_id, polls commit the records of earlier polls, every `auto_commit_interval_ms`
            and before a rebalance; so does `stop`.
        isolation_level: "read_uncommitted" or "read_committed".
        check_crcs: verifies the checksum of every batch.
        client_rack: reads from replicas in this rack if the brokers have racks (KIP-392).
        raw_records: returns `RawRecord`s, also control records, with producer ids and epochs.
        value_runs: returns a `ValueRun` instead of the records of a batch if no record has headers or a null value:
            faster.
        partition_assignment_strategy: with "classic", the assignors in order of preference: "range", "roundrobin",
            "sticky", "cooperative-sticky".
        session_timeout_ms, heartbeat_interval_ms: with "classic"; with "consumer" the broker sets them.
        max_poll_interval_ms: a member that does not poll for this time leaves the group until its next poll.
        listener: called when partitions are assigned or revoked.
        clock, rng, network: the ports; the real ones by default.
        security: the settings of TLS and SASL, as in Producer.

    Raises:
        IllegalState: a setting is invalid, or two settings exclude each other.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "barnabas-consumer",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: GroupProtocol = "classic",
        group_remote_assignor: str | None = None,
        key_deserializer: Callable[[bytes], ReadKeyT] | None = None,
        value_deserializer: Callable[[bytes], ReadValueT] | None = None,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        max_partition_fetch_bytes: int = 1_048_576,
        max_poll_records: int | None = None,
        auto_offset_reset: AutoOffsetReset = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        isolation_level: IsolationLevel = "read_uncommitted",
        check_crcs: bool = True,
        partition_assignment_strategy: Sequence[AssignorName] = ("range", "roundrobin"),
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 20,
        metadata_max_age_ms: int = 300_000,
        client_rack: str = "",
        raw_records: bool = False,
        value_runs: bool = False,
        listener: RebalanceListener | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        # The settings among the arguments have the names of the fields of ConsumerConfig (tested).
        config = ConsumerConfig.from_arguments(locals())
        self.group_id = config.group_id
        self.enable_auto_commit = config.commits_automatically
        self.isolation_level = config.isolation_level
        self._max_poll_records = config.max_poll_records
        self._max_poll_interval_ms = config.max_poll_interval_ms
        cluster = self._cluster = NetworkClient(config, clock, rng, network)
        self._home = cluster.home
        self._clock = cluster.clock
        self._fetcher = Fetcher(config, cluster.metadata, cluster.rng)
        self._subscription = Subscription(cluster, self._fetcher, config.group_id)
        self._reader = Reader(cluster, self._fetcher, self._subscription.reading_member)
        self._commits = Commits(
            cluster,
            self._fetcher,
            group=lambda: self._subscription.member,
            who=self._subscription.group_metadata,
            interval_ms=config.auto_commit_interval_ms if config.commits_automatically else None,
        )
        if config.group_id is not None:
            hooks = GroupHooks(self._apply_assignment, self._commits.before_revoke, self._reader.notify)
            protocols = GroupProtocols(
                partial(_classic_group, config, config.group_id, cluster, hooks),
                partial(_consumer_group, config, config.group_id, cluster, hooks),
            )
            if config.group_protocol == "auto":
                self._subscription.protocols = protocols
            else:
                self._subscription.group = getattr(protocols, config.group_protocol)()
        self._group = self._subscription.group
        self._subscription.listen(listener)
        self._cluster.listeners.append(self._on_cluster_change)
        self._returned: list[PartitionState] = []  # partitions whose records the last poll returned
        self._polling_task: asyncio.Task[Any] | None = None  # the task of the last poll
        self._current: PartitionState | None = None  # the partition whose batch `async for` is returning
        if topics:
            self._subscription.subscribe(topics, None, None)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and waits for the first metadata, or raises KafkaError. The first poll joins the group."""
        if self._reader.closed:
            raise ClientClosed("the consumer was closed; create a new one")
        if self._reader.started:
            return
        self._reader.start()
        try:
            await self._cluster.start()
            self._group = await self._subscription.choose_group()
        except BaseException:
            await self._reader.close()
            raise
        self._on_cluster_change()

    async def stop(self) -> None:
        """Commits (with automatic commits), leaves the group, closes the connections.

        The commit includes the records of the last poll only if the polling task calls this without an exception in
        progress: otherwise they may not be processed. `commit` before `stop` commits them in any case.
        """
        await self._close(failed=sys.exception() is not None)

    close = stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._close(failed=error is not None)

    # -- topics and partitions -----------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribes to topics, or to those whose whole name matches a regular expression. Replaces an earlier subscription.

        With `group_protocol="consumer"` the coordinator resolves the expression, in the syntax of RE2.

        Raises:
            IllegalState, InvalidTopic: neither or both are given, one is invalid, or partitions were assigned by hand.
        """
        if self._reader.closed:
            raise ClientClosed("the consumer is closed")
        self._subscription.subscribe((topics,) if isinstance(topics, str) else tuple(topics), pattern, listener)
        if self._reader.started:
            self._cluster.want_update()
            self._on_cluster_change()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads exactly these partitions, outside of a group. Replaces an earlier assignment.

        Raises:
            IllegalState: topics are subscribed to.
            InvalidTopic: a topic name is not valid.
        """
        if self._reader.closed:
            raise ClientClosed("the consumer is closed")
        self._subscription.assign(partitions)
        if self._reader.started:
            self._subscription.report_missing()
        self._reader.wake()

    def unsubscribe(self) -> None:
        """Ends the subscription or the assignment, and leaves the group."""
        self._subscription.clear(leave=self._reader.started)
        self._current = None
        self._returned = []
        self._fetcher.assign({})

    def subscription(self) -> set[str]:
        """The subscribed topics; with a pattern, the topics that are read."""
        return self._subscription.topics()

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return set(self._fetcher.partitions)

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """Returns the partitions of a topic; empty if the topic does not exist."""
        self._reader.check_open()
        if topic not in self._cluster.metadata.topics:
            self._cluster.add_topics([topic])
            await self._cluster.fresh_metadata()
        return set(range(self._cluster.metadata.partition_count(topic)))

    # -- records -------------------------------------------------------------------------------------------------------

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record[ReadKeyT | None, ReadValueT | None]]]:
        """Returns fetched records by partition; waits up to `timeout_ms` for the first. Positions move past them.

        A cancelled call has taken nothing.

        Args:
            partitions: take records only from these; default: all.
            max_records: default `max_poll_records`. A `ValueRun` counts as its values, and is not split.

        Raises:
            IllegalState: no topics are subscribed to, and no partitions are assigned.
            KafkaError: a fetch, a reset of a position, or the group failed with an error that a retry does not cure.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        limit = self._max_poll_records if max_records is None else max_records
        if max_records is not None and max_records < 1:
            raise IllegalState(f"max_records={max_records} must be 1 or more")
        first = True
        while True:
            self._begin_poll()
            if self._group is None or not self._group.blocked:
                records = self._fetcher.take(limit, partitions)
                if records:
                    self._mark_returned([self._fetcher.partitions[tp] for tp in records])
                    self._reader.wake()
                    return records
            if first:
                first = False
                self._reader.wake()
                await asyncio.sleep(0)  # so that a timeout of 0 also returns records that have just arrived
            elif not await self._wait(deadline):
                return {}

    async def getone(self, *partitions: TopicPartition) -> Record[ReadKeyT | None, ReadValueT | None]:
        """Waits for the next record and returns it. A cancelled call has taken nothing. Raises as `getmany`."""
        while True:
            self._begin_poll()
            if self._group is None or not self._group.blocked:
                if partitions:
                    taken = self._fetcher.take(1, partitions)
                    for tp, records in taken.items():
                        self._mark_returned([self._fetcher.partitions[tp]])
                        return records[0]
                else:
                    found = self._fetcher.take_one()
                    if found is not None:
                        state, record = found
                        self._mark_returned([state])
                        self._current = state
                        if not state.ready:
                            self._reader.wake()  # the buffer has room for another fetch
                        return record
            self._reader.wake()
            await self._wait(_NEVER_MS)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[ReadKeyT | None, ReadValueT | None]:
        state = self._current
        if state is not None and not state.paused:
            index = state.index
            ready = state.ready
            # The fast path: inside a decoded batch, and not at its last record. The group is checked for every record all
            # the same, because a rebalance may begin here.
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

    # -- positions -----------------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Moves the position: the next record of the partition is the first one at or after `offset` (≥ 0).

        A leader epoch in `offset` is that of the record before it, which the leader must have: otherwise the log was
        truncated (KIP-320).
        """
        self._state(partition)
        for tp, at in committable({partition: offset}).items():
            self._fetcher.seek(tp, at.offset, epoch=at.leader_epoch)
        self._reader.wake()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Moves to the first offset of the log; by default in all assigned partitions."""
        self._seek_by(Reset.EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Moves to the end of the log (with read_committed: to the last stable offset); by default in all partitions."""
        self._seek_by(Reset.LATEST, partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Moves to the group's committed offsets; by default in all assigned partitions."""
        self._seek_by(Reset.COMMITTED, partitions)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Moves to the first record at or after a time (ms since the Unix epoch), or to the end without one.

        By default in all assigned partitions. A partition that is revoked during the call is not moved. If the look-up
        fails with a KafkaError, no position has changed.
        """
        wanted = {TopicPartition(*tp): self._state(tp) for tp in partitions or tuple(self._fetcher.partitions)}
        found = await self.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
        for tp, state in wanted.items():
            if self._fetcher.partitions.get(tp) is state:
                at = found[tp]
                self._fetcher.seek(tp, *((None, Reset.LATEST) if at is None else (at.offset, None)))
        self._reader.wake()

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record of a partition; waits until it is known.

        Raises NoOffsetForPartition, or RequestTimedOut after `timeout_ms` (default `request_timeout_ms`).
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
        """Polls return no records of these partitions until `resume`; positions and the assignment stay."""
        for tp in partitions:
            self._state(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends a pause."""
        for tp in partitions:
            state = self._state(tp)
            state.paused = False
            state.urgent = True
        self._reader.wake()

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {tp for tp, state in self._fetcher.partitions.items() if state.paused}

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark in the last response: the offset after the last replicated record. None before the first."""
        found = self._state(partition).high_watermark
        return found if found >= 0 else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """The last stable offset in the last response: read_committed returns records below it. None before the first."""
        found = self._state(partition).last_stable_offset
        return found if found >= 0 else None

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Returns the first record of each partition at or after a timestamp (ms since the Unix epoch), or None."""
        found = await self._listed(searchable(timestamps))
        return {tp: found[tp] if found[tp].offset >= 0 else None for tp in timestamps}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the first offset of each partition's log."""
        return await self._bounds(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset after the last record of each partition; with read_committed the last stable offset."""
        return await self._bounds(partitions, LATEST)

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits offsets (the next to read), by default the position of every assigned partition.

        A cancelled call may or may not have taken effect; it can be repeated.

        Raises:
            CommitFailed: the group has rebalanced; the partitions may belong to another member.
            IllegalState: there is no group_id.
        """
        self._reader.check_open()
        self.group_metadata()  # raises without a group
        await self._commits.commit(self._commits.choose(offsets))

    def commit_soon(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> asyncio.Future[None]:
        """Commits in the background, by default the present positions. Commits take effect in the order of the calls.

        The future need not be awaited: a failure is logged. Raises as `commit`.
        """
        self._reader.check_open()
        self.group_metadata()  # raises without a group
        return self._commits.commit_soon(self._commits.choose(offsets))

    async def committed(self, partition: TopicPartition) -> int | None:
        """Returns the group's committed offset of a partition or None. Raises IllegalState without a group_id."""
        self._reader.check_open()
        tp = TopicPartition(*partition)
        found = await committed_offsets(self._cluster, self.group_metadata(), [tp])
        return found[tp].offset if tp in found else None

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This group member, for `Producer.send_offsets`. Raises IllegalState without a group_id."""
        return self._subscription.group_metadata()

    # -- internal: positions -------------------------------------------------------------------------------------------

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._fetcher.partitions.get(checked_partition(partition))
        if state is None:
            raise IllegalState(
                "the partition is not assigned to this consumer", topic=partition[0], partition=partition[1]
            )
        return state

    def _seek_by(self, reset: str, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions or tuple(self._fetcher.partitions):
            self._state(tp)
            self._fetcher.seek(TopicPartition(*tp), None, reset)
        self._reader.wake()

    async def _listed(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._reader.check_open()
        return await list_offsets(self._cluster, timestamps, read_committed=self._fetcher.config.read_committed)

    async def _bounds(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        found = await self._listed({TopicPartition(*tp): which for tp in partitions})
        return {tp: at.offset for tp, at in found.items()}

    # -- internal ------------------------------------------------------------------------------------------------------

    async def _close(self, *, failed: bool) -> None:
        if self._reader.closed:
            return
        if self._home.is_closed("Consumer.stop"):
            self._reader.abandon()
            return
        if failed or self._polling_task is not asyncio.current_task():
            self._returned = []
        try:
            if self._reader.started and not self._cluster.closed:
                self._mark_processed()
                await self._commits.before_revoke()
                if self._group is not None:
                    await self._group.leave("the consumer is being closed")
        finally:
            await self._reader.close()

    def _begin_poll(self) -> None:
        """First step of every poll: rebalances and automatic commits begin here."""
        self._reader.check_open()
        self._mark_processed()
        now = self._clock.monotonic_ms()
        if self._group is not None and self._subscription.active:
            self._group = self._subscription.begin_poll(self._group, now)
        self._commits.commit_if_due(now)

    async def _wait(self, deadline_ms: int) -> bool:
        """Waits for a change; False after `deadline_ms`. Raises IllegalState if nothing can arrive."""
        if not self._subscription.chosen:
            raise IllegalState("not subscribed to any topics or assigned any partitions: call subscribe() or assign()")
        now = self._clock.monotonic_ms()
        again = max(min(self._commits.due_ms, now + self._max_poll_interval_ms // 2), now + _AGAIN_MS)
        return await self._reader.polled(min(again, deadline_ms)) or again < deadline_ms

    def _mark_returned(self, states: list[PartitionState]) -> None:
        self._returned = states
        self._polling_task = asyncio.current_task()

    def _mark_processed(self) -> None:
        for state in self._returned:
            state.safe_position = state.position
        self._returned = []

    def _apply_assignment(self, partitions: Sequence[TopicPartition]) -> None:
        self._fetcher.assign(dict.fromkeys(partitions))
        states = self._fetcher.partitions
        self._returned = [state for state in self._returned if states.get(state.tp) is state]
        if self._current is not None and states.get(self._current.tp) is not self._current:
            self._current = None
        self._cluster.add_topics(tp.topic for tp in partitions)
        self._reader.wake()

    def _on_cluster_change(self) -> None:
        self._subscription.on_cluster_change()
        self._reader.wake()
        self._reader.notify()


def _consumer_group(config: ConsumerConfig, group_id: str, cluster: NetworkClient, hooks: GroupHooks) -> ConsumerGroup:
    return ConsumerGroup(
        cluster,
        group_id,
        hooks,
        group_instance_id=config.group_instance_id,
        rack_id=config.client_rack or None,
        server_assignor=config.group_remote_assignor,
        max_poll_interval_ms=config.max_poll_interval_ms,
    )


def _classic_group(config: ConsumerConfig, group_id: str, cluster: NetworkClient, hooks: GroupHooks) -> ClassicGroup:
    member = ClassicMember(
        group_id,
        group_instance_id=config.group_instance_id,
        rack_id=config.client_rack or None,
        strategies=config.partition_assignment_strategy,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
    )
    return ClassicGroup(cluster, member, hooks)
