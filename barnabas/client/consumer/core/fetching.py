"""Consumer core: decides which partitions to fetch from which broker, and keeps the fetched batches.
Responses to fetches from before a seek, reset or new assignment are dropped (their `version` differs).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from barnabas.client.consumer.core.config import ConsumerConfig
from barnabas.client.consumer.core.fetch_session import FetchSessionHandler
from barnabas.client.consumer.core.fetch_state import NEVER, Fetched, PartitionState
from barnabas.client.consumer.core.fetched_records import FetchedRecords
from barnabas.client.consumer.core.position_checks import PositionChecks
from barnabas.client.consumer.core.read_committed import AbortedFilter
from barnabas.client.errors import CorruptRecords, KafkaError, code_of, error_for
from barnabas.client.net.core.metadata import ClusterMetadata
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.ports import Buffer, Rng
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from barnabas.protocol.records import read_header

log = logging.getLogger("barnabas.client.consumer")

# largest fetch.max.wait while partitions of the same broker are left out with full buffers
_WAIT_WITH_FULL_BUFFERS_MS = 20
_INTERRUPT_AFTER_MS = 10  # a fetch without a response after this time is waiting for new records


class InFlightFetch(NamedTuple):
    """A Fetch request. `asked` has each partition's state and its version at the time of the request."""

    node_id: int
    request: FetchRequest
    version_max: int
    asked: dict[TopicPartition, tuple[PartitionState, int]]


class Fetcher:
    """Core of one consumer."""

    def __init__(self, config: ConsumerConfig, metadata: ClusterMetadata, rng: Rng) -> None:
        self.config = config
        self.metadata = metadata
        self._rng = rng
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.metadata_wanted = False
        self.interrupts: list[int] = []  # nodes whose fetch in flight should be abandoned; the shell clears it
        self._fetched = FetchedRecords(config)
        self.errors = self._fetched.errors  # raised by the next polls, oldest first
        # Attributes for polls: one more call for each record is measurable.
        self.has_records = self._fetched.available
        self.take = self._fetched.take
        self.take_one = self._fetched.take_one
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._busy: dict[int, int] = {}  # nodes with a fetch in flight → when it was sent
        self._interrupted: dict[int, None] = {}
        self._wake_ms: int | None = None
        self.checks = PositionChecks(
            self, metadata, rng, policy=config.auto_offset_reset, retry_backoff_ms=config.retry_backoff_ms
        )

    # -- assignment and positions --------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Replaces the assignment. A partition that stays keeps its position and fetched records."""
        for tp in [tp for tp in self.partitions if tp not in positions]:
            state = self.partitions.pop(tp)
            self._fetched.drop(state)
            state.move(None)
        for tp, position in positions.items():
            if tp not in self.partitions:
                self.partitions[tp] = PartitionState(tp, position)

    def seek(self, tp: TopicPartition, position: int | None, reset: str | None = None, *, epoch: int = -1) -> None:
        """Moves a partition to an offset after a record of `epoch` (KIP-320), or (None) to the position of `reset`."""
        state = self.partitions[tp]
        self._fetched.drop(state)
        state.move(position, reset, epoch)

    def refetch(self, state: PartitionState) -> None:
        self._fetched.drop(state)
        state.refetch()

    def fail(self, state: PartitionState, error: KafkaError) -> None:
        self._fetched.add_error(state, error)

    def unresolved(self) -> Iterator[PartitionState]:
        """Partitions with a leader and an unknown position. A leaderless one would delay the others."""
        return (
            state
            for tp, state in self.partitions.items()
            if state.position is None and state.reset is not None and tp in self.metadata.leaders
        )

    # -- out -----------------------------------------------------------------------------------------------------------

    def next_fetches(self, now_ms: int, ready: Callable[[int], bool]) -> list[InFlightFetch]:
        """Requests to send, at most one for each broker without a fetch in flight. `ready` may begin to connect."""
        self._wake_ms = None
        metadata = self.metadata
        config = self.config
        wanted: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        held_up: dict[int, None] = {}
        if self._fetched.size_bytes >= config.fetch_max_bytes:
            return []
        for tp, state in self.partitions.items():
            if state.paused or state.position is None or (state.fetching and not state.urgent):
                continue
            node_id = leader = metadata.leaders.get(tp, -1)
            if node_id < 0:
                self.metadata_wanted = True
                continue
            leader_epoch = metadata.leader_epochs.get(tp, -1)
            if state.nearest.node_id >= 0:
                node_id = state.nearest.choose(node_id, leader_epoch, metadata.brokers, now_ms)
            if node_id != state.asked:
                state.on_other_node()
            if metadata.topics.get(tp.topic) is not state.info:
                self.checks.on_topic(state)
            if (
                state.leader_epoch != leader_epoch
                and state.not_before_ms <= now_ms
                and not self.checks.holds(state, leader_epoch, leader, now_ms)
                and state.not_before_ms <= now_ms
            ):
                continue
            if node_id in self._busy:
                if state.urgent:
                    self._interrupt(node_id, now_ms)
                continue
            if state.buffered_bytes >= config.max_partition_fetch_bytes:
                held_up[node_id] = None
                continue
            if state.not_before_ms > now_ms:
                if state.not_before_ms != NEVER and (self._wake_ms is None or state.not_before_ms < self._wake_ms):
                    self._wake_ms = state.not_before_ms
                continue
            wanted.setdefault(node_id, {})[tp] = (state.fetch_offset, state.trail.latest)
        return [
            self._fetch(node_id, partitions, now_ms, node_id in held_up)
            for node_id, partitions in wanted.items()
            if ready(node_id)
        ]

    def wake_at(self) -> int | None:
        """When to call `next_fetches` again if nothing else happens, in monotonic ms."""
        return self._wake_ms

    def on_unsent(self, fetch: InFlightFetch) -> None:
        self._busy.pop(fetch.node_id, None)
        self._interrupted.pop(fetch.node_id, None)
        session = self._sessions.get(fetch.node_id)
        if session is not None:
            session.restart()
        for tp, _ in self._current(fetch):
            self.partitions[tp].fetching = False

    def on_unreachable(self, node_id: int, now_ms: int) -> bool:
        """No connection. Returns whether this node was a nearer replica; its partitions change now."""
        failed = [state for state in self.partitions.values() if state.nearest.node_id == node_id]
        for state in failed:
            state.nearest.give_up(now_ms)
        self.metadata_wanted |= bool(failed)
        return bool(failed)

    def on_failure(self, fetch: InFlightFetch, error: KafkaError, now_ms: int) -> None:
        interrupted = fetch.node_id in self._interrupted
        self.on_unsent(fetch)
        if interrupted:
            return
        self.metadata_wanted = True
        self.on_unreachable(fetch.node_id, now_ms)
        for tp, state in self._current(fetch):
            state.retry_later(now_ms, self.config.retry_backoff_ms, self._rng)
            if not error.retriable:
                error.topic, error.partition = tp.topic, tp.partition
        if not error.retriable:
            self.errors.append(error)

    # -- in ------------------------------------------------------------------------------------------------------------

    def on_answer(self, fetch: InFlightFetch, response: FetchResponse, now_ms: int) -> None:
        self._busy.pop(fetch.node_id, None)
        self._interrupted.pop(fetch.node_id, None)
        states = dict(self._current(fetch))
        for state in states.values():
            state.fetching = False
        session = self._sessions[fetch.node_id]
        code = code_of(response.error_code)
        if code is not ErrorCode.NONE:
            session.restart()
            for state in states.values():
                if code not in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
                    state.retry_later(now_ms, self.config.retry_backoff_ms, self._rng)
            self.metadata_wanted = True
            if not code.retriable and not self.on_unreachable(fetch.node_id, now_ms):
                self.errors.append(error_for(code, "Fetch was refused", broker=fetch.node_id))
            return
        session.on_answer(response.session_id)
        for topic in response.responses:
            name = topic.topic or session.name_of(topic.topic_id)
            for data in topic.partitions:
                tp = TopicPartition(name, data.partition_index)
                found = states.pop(tp, None)
                if found is not None:
                    self._on_partition(found, data, fetch.node_id, now_ms)
        for state in states.values():  # absent from the response: nothing new, and no error
            state.failing_since_ms = -1

    # -- internal --------------------------------------------------------------------------------------------------------

    def _interrupt(self, node_id: int, now_ms: int) -> None:
        """Abandons a fetch that waits for new records, because a partition of the same broker has moved."""
        due_ms = self._busy[node_id] + _INTERRUPT_AFTER_MS
        if due_ms > now_ms:
            if self._wake_ms is None or due_ms < self._wake_ms:
                self._wake_ms = due_ms
        elif node_id not in self._interrupted:
            self._interrupted[node_id] = None
            self.interrupts.append(node_id)

    def _fetch(
        self, node_id: int, partitions: dict[TopicPartition, tuple[int, int]], now_ms: int, held_up: bool
    ) -> InFlightFetch:
        config = self.config
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = FetchSessionHandler()
        request, version_max = session.request(partitions, self.metadata, config.max_partition_fetch_bytes)
        request.max_wait_ms = (
            min(config.fetch_max_wait_ms, _WAIT_WITH_FULL_BUFFERS_MS) if held_up else config.fetch_max_wait_ms
        )
        request.min_bytes = config.fetch_min_bytes
        request.max_bytes = config.fetch_max_bytes
        request.isolation_level = 1 if config.read_committed else 0
        if all(self.partitions[tp].nearest.wanted(now_ms) for tp in partitions):
            request.rack_id = config.client_rack
        self._busy[node_id] = now_ms
        asked = {}
        for tp in partitions:
            state = self.partitions[tp]
            state.fetching = True
            state.urgent = False
            state.asked = node_id
            asked[tp] = (state, state.version)
        return InFlightFetch(node_id, request, version_max, asked)

    def _current(self, fetch: InFlightFetch) -> Iterator[tuple[TopicPartition, PartitionState]]:
        """Partitions of a fetch that have not moved since; the others are only marked as not being fetched."""
        for tp, (state, version) in fetch.asked.items():
            if self.partitions.get(tp) is state and state.version == version:
                yield tp, state
            else:
                state.fetching = False

    def _on_partition(self, state: PartitionState, data: PartitionData, node_id: int, now_ms: int) -> None:
        code = code_of(data.error_code)
        if code is ErrorCode.NONE and data.diverging_epoch.epoch < 0:
            state.high_watermark = data.high_watermark
            state.last_stable_offset = data.last_stable_offset
            state.log_start_offset = data.log_start_offset
            records = data.records
            if records is not None and len(records) and not self._keep(state, records, data):
                state.retry_later(now_ms, self.config.retry_backoff_ms, self._rng)
                why = f"{len(records)} bytes from broker {node_id} contain no whole batch with that offset"
                self.fail(state, CorruptRecords(state.tp, state.fetch_offset, why))
            else:
                state.failing_since_ms = -1
                state.error = None
            if data.preferred_read_replica >= 0:
                self._follow_advice(state, data.preferred_read_replica, now_ms)
            return
        if state.nearest.node_id == node_id:  # whatever the error is: ask the leader
            state.nearest.give_up(now_ms)
            self.metadata_wanted = True
            self.metadata.hint(state.tp, data.current_leader.leader_id, data.current_leader.leader_epoch)
            return
        if code is ErrorCode.NONE:
            self.checks.on_diverging(state, data.diverging_epoch.epoch, data.diverging_epoch.end_offset, now_ms)
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self.config.auto_offset_reset == "none":
                state.retry_later(now_ms, self.config.retry_backoff_ms, self._rng)
                text = f"the log does not contain offset {state.fetch_offset}, and auto_offset_reset is 'none'"
                self.fail(
                    state, error_for(code, text, broker=node_id, topic=state.tp.topic, partition=state.tp.partition)
                )
            elif not state.ready and not state.buffered:  # records before it are delivered first
                log.warning(
                    "%s-%d does not contain offset %d; the position is reset to the %s offset",
                    *state.tp,
                    state.fetch_offset,
                    self.config.auto_offset_reset,
                )
                self.seek(state.tp, None, self.config.auto_offset_reset)
            else:
                state.not_before_ms = now_ms + self.config.retry_backoff_ms
            return
        state.retry_later(now_ms, self.config.retry_backoff_ms, self._rng)
        if code is ErrorCode.CORRUPT_MESSAGE:  # fetched again: another replica may be the leader then
            self.metadata_wanted = True
            self.fail(
                state, CorruptRecords(state.tp, state.fetch_offset, f"broker {node_id} reports that it is corrupt")
            )
        elif code.retriable:
            self.metadata_wanted = True
            self.metadata.hint(state.tp, data.current_leader.leader_id, data.current_leader.leader_epoch)
        else:
            self.fail(state, error_for(code, broker=node_id, topic=state.tp.topic, partition=state.tp.partition))

    def _follow_advice(self, state: PartitionState, node_id: int, now_ms: int) -> None:
        if node_id in self.metadata.brokers:
            epoch = self.metadata.leader_epochs.get(state.tp, -1)
            state.nearest.advise(node_id, epoch, now_ms + self.metadata.max_age_ms)
        else:
            state.nearest.give_up(now_ms)
            self.metadata_wanted = True

    def _keep(self, state: PartitionState, records: Buffer, data: PartitionData) -> bool:
        """Keeps the whole batches of a response. False if they do not advance the offset."""
        next_offset = state.fetch_offset
        position, end = 0, len(records)
        try:
            while end - position >= HEADER_SIZE:
                header = read_header(records, position)
                if position + header.size_bytes > end:
                    break
                position += header.size_bytes
                if header.leader_epoch > state.trail.latest:
                    state.trail.note(header.leader_epoch, max(header.base_offset, next_offset))
                next_offset = max(next_offset, header.next_offset)
        except RemoteProtocolError:
            position = end  # the error is raised when a poll reaches the batch; nothing after it is fetched
            state.not_before_ms = NEVER
        if next_offset == state.fetch_offset and state.not_before_ms != NEVER:
            return False
        aborted = None
        if self.config.read_committed:
            aborted = AbortedFilter((t.producer_id, t.first_offset) for t in data.aborted_transactions or ())
        self._fetched.add(state, Fetched(records, aborted))
        state.fetch_offset = next_offset
        return True
