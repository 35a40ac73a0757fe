"""The consumer's core: what to fetch from whom, and the records in what came back.

Driven by: assign, seek, pause, Fetch answers and failures, `take` for every poll.
Emits: Fetch requests (one on its way a broker), partitions whose position has to be looked up, records, errors to raise.

A partition is read from its leader, or from the replica in the same rack that the leader names (`nearest`, KIP-392).
Batches stay as they came until they are taken: one batch is decoded at a time. The next bytes of a partition are fetched
while those before are still being taken, up to `max_partition_fetch_bytes` ahead. Sessions are in `fetch_session`.

Invariants: `position` is the next offset to deliver and moves only by `take`, `seek` and `reset`; `fetch_offset` ≥ position;
an answer to a fetch sent before a seek, a reset or a new assignment is dropped (its `age` differs); records come in offset
order, each once. read_committed: `read_committed.AbortedFilter`, one for each answer and partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from barnabas.client.consumer.decoding import Deserializer, Deserializers, corrupt, deserialized, judged
from barnabas.client.consumer.fetch_session import FetchSession
from barnabas.client.consumer.fetch_state import NEVER, Fetched, PartitionState
from barnabas.client.consumer.position_checks import PositionChecks
from barnabas.client.consumer.read_committed import AbortedFilter
from barnabas.client.errors import CorruptRecords, KafkaError, code_of, error_for
from barnabas.client.net.metadata import ClusterMetadata
from barnabas.client.types import Record, TopicPartition
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.ports import Buffer, Rng
from barnabas.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from barnabas.protocol.records import HEADER_SIZE, read_header

__all__ = ["FetchConfig", "Fetcher", "InFlightFetch"]

log = logging.getLogger("barnabas.client.consumer")

_WAIT_WITH_FULL_BUFFERS_MS = 20  # how long a fetch may hold up partitions that it leaves out because they have enough
_INTERRUPT_AFTER_MS = 10  # an answer that has something to tell has come by then


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """What the fetcher goes by; see Consumer. Sizes in bytes, times in ms."""

    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    read_committed: bool = False
    check_crcs: bool = True
    auto_offset_reset: str = "latest"  # or "earliest", "none"
    retry_backoff_ms: int = 20
    rack_id: str = ""


class InFlightFetch(NamedTuple):
    """A Fetch request to send. `asked` tells which answers still count: each partition's state, and its age when it was asked."""

    node_id: int
    request: FetchRequest
    version_max: int
    asked: dict[TopicPartition, tuple[PartitionState, int]]


class Fetcher:
    """The core of one consumer.

    Args:
        rng: spreads retries.
        key_deserializer, value_deserializer: applied to every record that has a key, a value.
    """

    def __init__(
        self,
        config: FetchConfig,
        metadata: ClusterMetadata,
        rng: Rng,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> None:
        self.config = config
        self.metadata = metadata
        self._rng = rng
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.errors: list[KafkaError] = []  # to be raised by the next poll, oldest first
        self.metadata_wanted = False
        self._deserializers: Deserializers | None = (
            None if key_deserializer is None and value_deserializer is None else (key_deserializer, value_deserializer)
        )
        self._sessions: dict[int, FetchSession] = {}
        self.interrupts: list[int] = []  # nodes whose fetch on its way should be given up, for the shell to take
        self._busy: dict[int, int] = {}  # nodes with a fetch on its way → when it was sent
        self._interrupted: dict[int, None] = {}
        self._turns: dict[PartitionState, None] = {}  # partitions with something to take, next first
        self._buffered_bytes = 0
        self._wake_ms: int | None = None
        self.checks = PositionChecks(
            self, metadata, rng, policy=config.auto_offset_reset, retry_backoff_ms=config.retry_backoff_ms
        )

    # -- assignment and positions --------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Replaces the assignment. A partition that stays keeps its position and what was fetched of it."""
        for tp in [tp for tp in self.partitions if tp not in positions]:
            state = self.partitions.pop(tp)
            self._drop_buffer(state)
            state.move(None)
        for tp, position in positions.items():
            if tp not in self.partitions:
                self.partitions[tp] = PartitionState(tp, position)

    def seek(self, tp: TopicPartition, position: int | None, reset: str | None = None, *, epoch: int = -1) -> None:
        """Moves a partition to an offset, or (None) to wherever `reset` leads.

        Args:
            epoch: leader epoch of the record before the offset: the leader is asked whether it has that (KIP-320).
        """
        state = self.partitions[tp]
        self._drop_buffer(state)
        state.move(position, reset, epoch)

    def refetch(self, state: PartitionState) -> None:
        """Drops what was fetched of a partition and not taken: it is fetched again."""
        self._drop_buffer(state)
        state.refetch()

    def fail(self, state: PartitionState, error: KafkaError) -> None:
        """The poll that has taken what was fetched before raises the error."""
        state.trouble = error
        self._turns.setdefault(state)

    def unresolved(self) -> Iterator[PartitionState]:
        """Partitions whose position has to be looked up, and can be: one without a leader must not hold up the others."""
        return (
            state
            for tp, state in self.partitions.items()
            if state.position is None and state.reset is not None and tp in self.metadata.leaders
        )

    # -- out -----------------------------------------------------------------------------------------------------------

    def next_fetches(self, now_ms: int, ready: Callable[[int], bool]) -> list[InFlightFetch]:
        """The requests to send now, one for each broker that has none on its way and something to be asked.

        Args:
            ready: whether a request can be handed to a node's connection; may begin to connect.
        """
        self._wake_ms = None
        metadata = self.metadata
        config = self.config
        wanted: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        held_up: dict[int, None] = {}
        if self._buffered_bytes >= config.fetch_max_bytes:
            return []
        for tp, state in self.partitions.items():
            if state.paused or state.position is None or (state.fetching and not state.hurried):
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
                and not self.checks.holds(state, leader_epoch, leader)
            ):
                continue
            if node_id in self._busy:
                if state.hurried:
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
        """When `next_fetches` is worth calling again without other news, in monotonic ms."""
        return self._wake_ms

    def on_unsent(self, fetch: InFlightFetch) -> None:
        """The request could not be handed to a connection."""
        self._busy.pop(fetch.node_id, None)
        self._interrupted.pop(fetch.node_id, None)
        session = self._sessions.get(fetch.node_id)
        if session is not None:
            session.restart()
        for tp, _ in self._current(fetch):
            self.partitions[tp].fetching = False

    def on_unreachable(self, node_id: int, now_ms: int) -> bool:
        """No connection can be made. Whether that was a replica nearer by, and so others are to be asked now."""
        failed = [state for state in self.partitions.values() if state.nearest.node_id == node_id]
        for state in failed:
            state.nearest.give_up(now_ms)
        self.metadata_wanted |= bool(failed)
        return bool(failed)

    def on_failure(self, fetch: InFlightFetch, error: KafkaError, now_ms: int) -> None:
        """No answer came."""
        interrupted = fetch.node_id in self._interrupted
        self.on_unsent(fetch)
        if interrupted:
            return
        self.metadata_wanted = True
        self.on_unreachable(fetch.node_id, now_ms)
        for tp, state in self._current(fetch):
            state.later(now_ms, self.config.retry_backoff_ms, self._rng)
            if not error.retriable:
                error.topic, error.partition = tp.topic, tp.partition
        if not error.retriable:
            self.errors.append(error)

    # -- in ------------------------------------------------------------------------------------------------------------

    def on_answer(self, fetch: InFlightFetch, response: FetchResponse, now_ms: int) -> None:
        """Takes an answer. Its buffers are kept until their records are taken."""
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
                    state.later(now_ms, self.config.retry_backoff_ms, self._rng)
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
        for state in states.values():  # no news, and so no trouble
            state.failing_since_ms = -1

    # -- records -------------------------------------------------------------------------------------------------------

    def has_records(self) -> bool:
        """Whether `take` may find something now."""
        return any(not state.paused for state in self._turns)

    def take(
        self, max_records: int | None = None, only: Iterable[TopicPartition] = ()
    ) -> dict[TopicPartition, list[Record[Any, Any]]]:
        """Records that are there, partition by partition in turn; positions move behind them.

        Args:
            max_records: at most so many in all.
            only: partitions to take from; empty means all.

        Raises:
            KafkaError: an error to be told, or a batch that cannot be read (its partition stays where it is).
        """
        if self.errors:
            raise self.errors.pop(0)
        wanted = frozenset(only)
        taken: dict[TopicPartition, list[Record[Any, Any]]] = {}
        left = max_records
        for state in list(self._turns):
            if state.paused or (wanted and state.tp not in wanted):
                continue
            records: list[Record[Any, Any]] = []
            while left is None or left > 0:
                try:
                    more = self._take_from(state, left)
                except KafkaError:
                    if not taken and not records:
                        state.trouble = None  # told; where it goes on, the next fetch meets it again
                        raise
                    break  # what was taken is delivered first; the next poll meets the error again
                if not more:
                    break
                records += more
                if left is not None:
                    left -= len(more)
            if records:
                taken[state.tp] = records
            if left is not None and left <= 0:
                if state in self._turns:  # the next poll begins with another partition
                    del self._turns[state]
                    self._turns[state] = None
                break
        return taken

    def take_one(self) -> tuple[PartitionState, Record[Any, Any]] | None:
        """The next record and its partition, staying with a partition until its batch is used up."""
        if self.errors:
            raise self.errors.pop(0)
        for state in list(self._turns):
            if state.paused:
                continue
            try:
                records = self._take_from(state, 1)
            except KafkaError:
                state.trouble = None
                raise
            if records:
                if not state.ready and len(self._turns) > 1 and state in self._turns:
                    del self._turns[state]
                    self._turns[state] = None
                return state, records[0]
        return None

    def _take_from(self, state: PartitionState, limit: int | None) -> list[Record[Any, Any]]:
        """Up to `limit` records of one decoded batch; empty when nothing is left of the partition."""
        ready = state.ready
        if not ready:
            ready = self._decode_next(state)
            if not ready:
                if state.trouble is not None:
                    raise state.trouble
                self._turns.pop(state, None)
                return ready
        index = state.index
        if index == 0 and (limit is None or limit >= len(ready)):
            records = ready
            stop = len(ready)
        else:
            stop = len(ready) if limit is None else min(len(ready), index + limit)
            records = ready[index:stop]
        if stop == len(ready):
            state.ready = []
            state.index = 0
            state.position = state.ready_next
            if not state.buffered and state.trouble is None:
                self._turns.pop(state, None)
        else:
            state.index = stop
            state.position = records[-1].offset + 1
        return records

    def _decode_next(self, state: PartitionState) -> list[Record[Any, Any]]:
        """The records of the next batch that has any to deliver; the position moves over batches that have none."""
        position = state.position
        while state.buffered and position is not None:
            fetched = state.buffered[0]
            if fetched.end - fetched.position < HEADER_SIZE:
                self._used_up(state)
                continue
            try:
                header = read_header(fetched.records, fetched.position)
                if fetched.position + header.size_bytes > fetched.end:
                    self._used_up(state)  # the batch was cut off by the size limit; it comes whole with the next fetch
                    continue
                records = judged(state.tp, fetched, header, check_crcs=self.config.check_crcs)
            except RemoteProtocolError as error:
                raise corrupt(state, error) from error
            if records and records[0].offset < position:
                records = [r for r in records if r.offset >= position]
            next_offset = max(header.next_offset, position)
            if records and self._deserializers is not None:
                records, failed_at = deserialized(records, self._deserializers)
                # What comes before is delivered; the next poll begins with the one that failed.
                if failed_at is not None:
                    state.ready, state.index, state.ready_next = records, 0, failed_at
                    return records
            fetched.position += header.size_bytes
            if records:
                state.ready = records
                state.index = 0
                state.ready_next = next_offset
                if fetched.end - fetched.position < HEADER_SIZE:
                    self._used_up(state)
                return records
            if state.safe_position == position:
                state.safe_position = next_offset
            position = state.position = next_offset
        return []

    # -- inside --------------------------------------------------------------------------------------------------------

    def _interrupt(self, node_id: int, now_ms: int) -> None:
        """A fetch that has brought nothing for a while waits for news of other partitions: it is given up for one that moved."""
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
            session = self._sessions[node_id] = FetchSession()
        request, version_max = session.request(partitions, self.metadata, config.max_partition_fetch_bytes)
        request.max_wait_ms = (
            min(config.fetch_max_wait_ms, _WAIT_WITH_FULL_BUFFERS_MS) if held_up else config.fetch_max_wait_ms
        )
        request.min_bytes = config.fetch_min_bytes
        request.max_bytes = config.fetch_max_bytes
        request.isolation_level = 1 if config.read_committed else 0
        if all(self.partitions[tp].nearest.wanted(now_ms) for tp in partitions):
            request.rack_id = config.rack_id
        self._busy[node_id] = now_ms
        asked = {}
        for tp in partitions:
            state = self.partitions[tp]
            state.fetching = True
            state.hurried = False
            state.asked = node_id
            asked[tp] = (state, state.age)
        return InFlightFetch(node_id, request, version_max, asked)

    def _current(self, fetch: InFlightFetch) -> Iterator[tuple[TopicPartition, PartitionState]]:
        """The partitions of a fetch that are still where they were when it was sent; others are only set free.

        One that was given up and came back is another one: its position may be an earlier offset than this fetch asked for.
        """
        for tp, (state, age) in fetch.asked.items():
            if self.partitions.get(tp) is state and state.age == age:
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
                state.later(now_ms, self.config.retry_backoff_ms, self._rng)
                why = f"{len(records)} bytes of broker {node_id} hold no whole batch that reaches it"
                self.fail(state, CorruptRecords(state.tp, state.fetch_offset, why))
            else:
                state.failing_since_ms = -1
                state.trouble = None
            if data.preferred_read_replica >= 0:
                self._turn_to(state, data.preferred_read_replica, now_ms)
            return
        if state.nearest.node_id == node_id:  # whatever it is, the leader knows better
            state.nearest.give_up(now_ms)
            self.metadata_wanted = True
            self.metadata.hint(state.tp, data.current_leader.leader_id, data.current_leader.leader_epoch)
            return
        if code is ErrorCode.NONE:
            self.checks.on_diverging(state, data.diverging_epoch.epoch, data.diverging_epoch.end_offset, now_ms)
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self.config.auto_offset_reset == "none":
                state.later(now_ms, self.config.retry_backoff_ms, self._rng)
                text = f"the log does not hold offset {state.fetch_offset}, and auto_offset_reset is 'none'"
                self.fail(
                    state, error_for(code, text, broker=node_id, topic=state.tp.topic, partition=state.tp.partition)
                )
            elif not state.ready and not state.buffered:  # what came before is delivered first
                log.warning(
                    "%s-%d does not hold offset %d, going to the %s one",
                    *state.tp,
                    state.fetch_offset,
                    self.config.auto_offset_reset,
                )
                self.seek(state.tp, None, self.config.auto_offset_reset)
            else:
                state.not_before_ms = now_ms + self.config.retry_backoff_ms
            return
        state.later(now_ms, self.config.retry_backoff_ms, self._rng)
        if code is ErrorCode.CORRUPT_MESSAGE:  # asked for again: another replica may lead by then
            self.metadata_wanted = True
            self.fail(state, CorruptRecords(state.tp, state.fetch_offset, f"broker {node_id} says that it is corrupt"))
        elif code.retriable:
            self.metadata_wanted = True
            self.metadata.hint(state.tp, data.current_leader.leader_id, data.current_leader.leader_epoch)
        else:
            self.fail(state, error_for(code, broker=node_id, topic=state.tp.topic, partition=state.tp.partition))

    def _turn_to(self, state: PartitionState, node_id: int, now_ms: int) -> None:
        """The leader names a replica that is nearer by (KIP-392)."""
        if node_id in self.metadata.brokers:
            epoch = self.metadata.leader_epochs.get(state.tp, -1)
            state.nearest.advise(node_id, epoch, now_ms + self.metadata.max_age_ms)
        else:
            state.nearest.give_up(now_ms)
            self.metadata_wanted = True

    def _keep(self, state: PartitionState, records: Buffer, data: PartitionData) -> bool:
        """Queues whole batches; the next fetch goes on behind the last of them. False where they do not lead on."""
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
            position = end  # told when the batch is reached; nothing behind it is fetched
            state.not_before_ms = NEVER
        if next_offset == state.fetch_offset and state.not_before_ms != NEVER:
            return False
        aborted = None
        if self.config.read_committed:
            aborted = AbortedFilter((t.producer_id, t.first_offset) for t in data.aborted_transactions or ())
        fetched = Fetched(records, aborted)
        state.buffered.append(fetched)
        state.buffered_bytes += fetched.size_bytes
        self._buffered_bytes += fetched.size_bytes
        state.fetch_offset = next_offset
        self._turns.setdefault(state)
        return True

    def _used_up(self, state: PartitionState) -> None:
        fetched = state.buffered.popleft()
        state.buffered_bytes -= fetched.size_bytes
        self._buffered_bytes -= fetched.size_bytes

    def _drop_buffer(self, state: PartitionState) -> None:
        self._buffered_bytes -= state.buffered_bytes
        self._turns.pop(state, None)
