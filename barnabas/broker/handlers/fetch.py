"""Handles Fetch (key 1), versions 4 to 18: reads record batches of partitions, for consumers and followers.

Behaviour: returns whole batches up to the high watermark, or under read_committed up to the last stable offset together with the aborted
transactions among them. `max_bytes` limits the answer and each partition's own limit its part, but the first batch is always
returned. With fewer than `min_bytes` the request waits up to `max_wait_ms`; an error, a diverging epoch or a lost leadership is
answered at once. Idle partitions of a session are neither read nor answered (KIP-227, `fetch_sessions`). A request for more than LARGE
partitions is read and answered in slices (`slices`).

A follower (replica id ≥ 0) reads to the end of the log. Its fetch offset is an acknowledgement, processed before the read, so that the
answer carries the resulting high watermark. It waits for records; the next answer carries a changed high watermark, as in Kafka.
Beyond Kafka: a new request of a session makes the waiting one be answered at once, and if consumers read from followers, a changed
high watermark is answered at once too (Kafka's followers wait for it up to `replica.fetch.wait.max.ms`).

Version notes: v7 sessions; v9 checks the client's leader epoch (KIP-320); v11 followers serve consumers up to the high watermark that
they know, and if `replica.selector.class` is Kafka's rack-aware one, the leader names a replica in the consumer's rack instead of
returning records (KIP-392); v12 diverging epochs (KIP-595) and leader hints (KIP-951, endpoints since v16); v13 topics by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.broker.api.call import Call, Pending, Table
from barnabas.broker.handlers.fetch_partitions import (
    FIRST_BY_ID,
    Absent,
    ReadableTopics,
    WantedPartitions,
    fetched_partitions,
    known_partitions,
    name_partitions,
    unknown_partition,
)
from barnabas.broker.handlers.fetch_reading import Found, PartitionReader, count_traffic
from barnabas.broker.handlers.leader_hints import add_fetch_hints
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.replica.core.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    WantedPartition,
)
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.core.nearest import LEADER
from barnabas.broker.scheduling.slices import Slice
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from barnabas.storage.long_reads import NOTHING_AHEAD, READ_BYTES_MAX, LongRead
from barnabas.work import UNITS_PER_SLICE, Steps, Work

FIRST_WITH_SESSIONS: Final = 7
PARTITIONS_A_YIELD: Final = 32
LARGE: Final = 200  # partitions read in one turn
READ_BYTES_PER_UNIT: Final = READ_BYTES_MAX // UNITS_PER_SLICE

_Parts = list[tuple[WantedPartition, Found]]


class _Pass:
    """One pass over partitions: the next one, the results so far, and the bytes of records it may still return."""

    __slots__ = ("ahead", "at", "left", "parts", "total", "unknown", "wanted")

    def __init__(self, wanted: list[WantedPartition], max_bytes: int) -> None:
        self.wanted = wanted
        self.at = 0
        self.ahead = NOTHING_AHEAD
        self.left = max_bytes
        self.total = 0
        self.parts: _Parts = []
        self.unknown: _Parts = []  # after all others, as in Kafka

    def found(self) -> tuple[_Parts, int]:
        """The answers of partitions, and the bytes of records in them."""
        return self.parts + self.unknown if self.unknown else self.parts, self.total


class _Fetch:
    """One request while it is served and while it waits. It waits for progress of its session, or of its replicas without a session."""

    __slots__ = (
        "_again",
        "_due",
        "_release_bytes",
        "_served",
        "_slice",
        "_stable",
        "absent",
        "call",
        "deadline",
        "full",
        "max_bytes",
        "min_bytes",
        "needs",
        "pending",
        "reader",
        "session",
        "wanted",
    )

    def __init__(
        self,
        needs: Needs,
        call: Call[FetchRequest],
        wanted: WantedPartitions,
        session: FetchSession | None,
        absent: Absent | None = None,
    ) -> None:
        request = call.request
        self.needs = needs
        self.call = call
        self.wanted = wanted
        self.absent = absent  # unknown partitions, answered without a read
        self.session = session
        self.full = session is None or request.session_epoch <= INITIAL_EPOCH
        self.reader = PartitionReader(needs, call)
        self.max_bytes = min(request.max_bytes, needs.server.answer_bytes_max(needs.fetch_max_bytes))
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.pending: Pending[FetchResponse] | None = None
        self.deadline: Timer | None = None
        self._due = False
        self._release_bytes = 0  # size of the watched logs that makes another read worthwhile
        self._stable: Sequence[int] = ()
        self._served: Sequence[tuple[int, int]] = ()  # leader and leader epoch of each watched replica
        self._slice: Slice | None = None  # the read of many partitions that is under way
        self._again = False  # a watched log moved during that read

    # -- reading

    def read(self) -> tuple[_Parts, int] | Steps[tuple[_Parts, int]]:
        """Reads the partitions that may have something: returns their data and the bytes of records in it, or work that returns these."""
        self.reader.urgent = bool(self.absent)
        one = _Pass(list(self._to_read.values()), self.max_bytes)
        if len(one.wanted) <= LARGE:
            try:
                self._read_some(one, LARGE)
            except LongRead:
                return self._read_in_slices(one)
            if one.at == len(one.wanted):
                return one.found()
        return self._read_in_slices(one)

    def _read_in_slices(self, one: _Pass) -> Steps[tuple[_Parts, int]]:
        watched = 0
        while one.at < len(one.wanted):
            before = one.total
            try:
                self._read_some(one, PARTITIONS_A_YIELD)
            except LongRead as error:
                one.ahead = error.ahead
                yield from error.ahead.load()
            for wanted in one.wanted[watched : one.at]:
                if wanted.drained:
                    wanted.watch()  # an append before its answer keeps it ready
            watched = one.at
            yield PARTITIONS_A_YIELD + (one.total - before) // READ_BYTES_PER_UNIT
        return one.found()

    @property
    def is_unchecked(self) -> bool:
        """Whether the client may have lost permissions for idle partitions of its session. Partitions that are ready are checked when they
        are read.
        """
        session, readable = self.session, self.reader.readable
        return (
            session is not None
            and not readable.all
            and (readable.standing is None or session.standing != readable.standing)
        )

    @property
    def _to_read(self) -> WantedPartitions:
        return self.wanted if self.session is None else self.session.ready

    def _read_some(self, one: _Pass, count: int) -> None:
        """Reads the next partitions of a pass, at most `count`, until it has read READ_BYTES_MAX. Raises LongRead."""
        enough = one.total + READ_BYTES_MAX
        for wanted in one.wanted[one.at : one.at + count]:
            if one.total >= enough:
                return
            found = self.reader.read(wanted, one.left, at_least_one=one.total == 0, ahead=one.ahead)
            one.at += 1
            if isinstance(found, Replica):
                wanted.drained = True
            elif isinstance(found, ErrorCode):
                one.unknown.append((wanted, found))
                continue
            else:
                size = len(found.records or b"")
                one.total += size
                one.left = max(one.left - size, 0)
            one.parts.append((wanted, found))

    # -- answering

    def answer(self, parts: _Parts) -> FetchResponse:
        """The response of a pass; updates the session with what its peer knows after it."""
        topics: list[FetchableTopicResponse] = []
        self._answer_some(parts, topics)
        return self._response(topics)

    def answer_in_slices(self, parts: _Parts) -> Work:
        """Returns what `answer` returns, in slices. Removes the parts from their list, so that memory does not hold both."""
        topics: list[FetchableTopicResponse] = []
        parts.reverse()
        while parts:
            self._answer_some(parts[: -PARTITIONS_A_YIELD - 1 : -1], topics)
            del parts[-PARTITIONS_A_YIELD:]
            yield PARTITIONS_A_YIELD // 4
        for number, ((name, partition), code) in enumerate((self.absent or {}).items()):
            self._partitions_of(name, topics).append(unknown_partition(partition, code))
            if number % PARTITIONS_A_YIELD == 0:
                yield PARTITIONS_A_YIELD // 8
        return self._response(topics)

    def _partitions_of(self, name: str | bytes, topics: list[FetchableTopicResponse]) -> list[PartitionData]:
        """The partitions of the last topic in the response; appends the topic if it is another one."""
        last = topics[-1] if topics else None
        if isinstance(name, bytes):
            if last is None or last.topic_id != name:
                topics.append(FetchableTopicResponse(topic_id=name))
        elif last is None or last.topic != name:
            topics.append(FetchableTopicResponse(topic=name))
        return topics[-1].partitions

    def _answer_some(self, parts: _Parts, topics: list[FetchableTopicResponse]) -> None:
        session = self.session
        by_id = self.call.version >= FIRST_BY_ID
        if self.needs.replicas.traffic is not None:
            count_traffic(parts, follows=self.reader.follows)
        for wanted, found in parts:
            if session is not None:
                if isinstance(found, Replica):
                    news = wanted.has_news(0, found.high_watermark, found.log.log_start_offset, records=False)
                elif isinstance(found, ErrorCode):
                    news = wanted.has_news(found, -1, -1, records=False)
                else:
                    news = wanted.has_news(
                        found.error_code, found.high_watermark, found.log_start_offset, records=bool(found.records)
                    )
                    news = news or found.diverging_epoch.epoch >= 0 or found.preferred_read_replica != LEADER
                session.on_answered(wanted)
                if not (news or self.full):
                    continue
            if isinstance(found, Replica):
                found = self.reader.without_records(found, wanted)
            elif isinstance(found, ErrorCode):
                found = unknown_partition(wanted.partition, found)
            self._partitions_of(wanted.topic_id if by_id else wanted.topic, topics).append(found)

    def _response(self, topics: list[FetchableTopicResponse]) -> FetchResponse:
        session = self.session
        response = FetchResponse(session_id=NO_SESSION if session is None else session.session_id, responses=topics)
        if self.reader.urgent:
            add_fetch_hints(self.needs, self.call, response)
        return response

    # -- waiting

    def wait(self, readable_bytes: int) -> Pending[FetchResponse]:
        """Waits until enough records can be read or the time is over."""
        if self.session is not None:
            self.session.parked = self
            for wanted in self.session.ready.values():
                wanted.watch()
        else:
            for replica in self._replicas():
                replica.watchers[self] = None
        if self.min_bytes > 1:
            self._release_bytes = self._log_bytes() + self.min_bytes - readable_bytes
            self._stable = self._stable_offsets()
            self._served = self._serving()
        self.pending = Pending(on_closed=self._stop)
        self.deadline = self.needs.reactor.call_later(self.call.request.max_wait_ms, self._on_deadline)
        return self.pending

    def on_progress(self, replica: Replica) -> None:
        """A watched log moved: checks it at the end of this wake-up, once."""
        self.look_soon()

    def look_soon(self) -> None:
        """Looks at the end of this wake-up whether enough can be read."""
        if not self._due:
            self._due = True
            self.needs.reactor.soon(self._look)

    def overtaken(self) -> None:
        """The peer sent a new request: answers this one now."""
        self._on_deadline()

    def _replicas(self) -> list[Replica]:
        return [wanted.replica for wanted in self.wanted.values() if wanted.replica is not None]

    def _log_bytes(self) -> int:
        return sum(replica.log.size_bytes for replica in self._replicas())

    def _stable_offsets(self) -> list[int]:
        return [replica.last_stable_offset for replica in self._replicas()] if self.reader.committed else []

    def _serving(self) -> list[tuple[int, int]]:
        return [(replica.leader_id, replica.leader_epoch) for replica in self._replicas()]

    def _look(self) -> None:
        self._due = False
        if self.pending is None or self.pending.resolved:
            return
        if self.min_bytes > 1 and self._serving() == self._served:
            stable = self._stable_offsets()
            if stable == self._stable and self._log_bytes() < self._release_bytes:
                return
            self._stable = stable
        if self._slice is not None:
            self._again = True
            return
        found = self.read()
        if isinstance(found, tuple):
            self._looked(found)
        else:
            self._slice = self.needs.slices.start(found, self._looked, self._failed)

    def _looked(self, found: tuple[_Parts, int]) -> None:
        self._slice = None
        again, self._again = self._again, False
        if found[1] >= self.min_bytes or self.reader.urgent:
            self._resolve(found[0])
        elif again:
            self.look_soon()

    def _on_deadline(self) -> None:
        if self.pending is None or self.pending.resolved:
            return
        found = self.read()
        if isinstance(found, tuple):
            self._resolve(found[0])
        else:
            self._stop()
            self.pending.resolve(self._last_look(found))

    def _last_look(self, reading: Steps[tuple[_Parts, int]]) -> Work:
        parts, _ = yield from reading
        response = yield from self.answer_in_slices(parts)
        return response

    def _failed(self, error: BaseException) -> None:
        raise error

    def _resolve(self, parts: _Parts) -> None:
        self._stop()
        if self.pending is not None:
            self.pending.resolve(self.answer_in_slices(parts) if len(parts) > LARGE else self.answer(parts))

    def _stop(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None
        if self.session is None:
            for replica in self._replicas():
                replica.watchers.pop(self, None)
        elif self.session.parked is self:
            self.session.parked = None


def fetch(needs: Needs, call: Call[FetchRequest]) -> FetchResponse | Pending[FetchResponse] | Work:
    """Reads the partitions of a request or of its session; see the module's docstring."""
    request = call.request
    if request.topics and sum([len(topic.partitions) for topic in request.topics]) > LARGE:
        return _fetch_in_slices(needs, call)
    named: WantedPartitions = {}
    for topic in request.topics:
        name_partitions(call, topic, topic.partitions, named)
    wanted, session = fetched_partitions(needs.fetch_sessions, call, named)
    one = _Fetch(needs, call, wanted, session)
    if one.is_unchecked:
        return _check_session(one)
    found = one.read()
    if not isinstance(found, tuple):
        return _answer_later(one, found)
    parts, size = found
    if size >= one.min_bytes or one.reader.urgent or request.max_wait_ms <= 0 or not wanted:
        return one.answer(parts)
    return one.wait(size)


def _fetch_in_slices(needs: Needs, call: Call[FetchRequest]) -> Work:
    """Returns what `fetch` returns, in slices. Removes noted partitions from the request, so that memory does not hold 100,000 twice."""
    named: WantedPartitions = {}
    absent: Absent = {}
    readable = ReadableTopics(call, needs.replicas)
    remaining = list(reversed(call.request.topics))
    if call.version >= FIRST_WITH_SESSIONS:  # earlier versions name the partitions in a refusal
        call.request.topics = []
    while remaining:
        topic = remaining.pop()
        partitions = list(reversed(topic.partitions))
        if call.version >= FIRST_WITH_SESSIONS:
            topic.partitions = []
        while partitions:
            some = partitions[: -PARTITIONS_A_YIELD - 1 : -1]
            del partitions[-PARTITIONS_A_YIELD:]
            if call.request.session_epoch <= FINAL_EPOCH:
                some = known_partitions(needs.replicas, call, topic, some, absent, readable)
            name_partitions(call, topic, some, named)
            yield 1 + PARTITIONS_A_YIELD // 4
    one = _Fetch(needs, call, *fetched_partitions(needs.fetch_sessions, call, named), absent)
    answer = yield from (_check_session(one) if one.is_unchecked else _answer_later(one, one.read()))
    return answer


def _check_session(one: _Fetch) -> Work:
    """Returns what `fetch` returns, after idle partitions that the client may no longer read are ready to be refused."""
    session = one.session
    if session is not None:
        standing, session.standing = one.reader.readable.standing, None
        for number, wanted in enumerate(list(session.wanted.values())):
            if wanted.key[0] not in one.reader.readable:
                session.ready[wanted.key] = wanted
            if number % PARTITIONS_A_YIELD == 0:
                yield PARTITIONS_A_YIELD // 8
        session.standing = standing
    answer = yield from _answer_later(one, one.read())
    return answer


def _answer_later(one: _Fetch, found: tuple[_Parts, int] | Steps[tuple[_Parts, int]]) -> Work:
    parts, size = found if isinstance(found, tuple) else (yield from found)
    if size >= one.min_bytes or one.reader.urgent or one.call.request.max_wait_ms <= 0 or not one.wanted:
        response = yield from one.answer_in_slices(parts)
        return response
    pending = one.wait(size)
    one.look_soon()  # a log that was read first may have moved before it was watched
    return pending


def refuse(call: Call[FetchRequest], error: BrokerError) -> FetchResponse:
    """The error of the whole request, without partitions; before v7 each partition carries it."""
    if call.version >= FIRST_WITH_SESSIONS:
        return FetchResponse(error_code=error.code)
    responses = [
        FetchableTopicResponse(
            topic=topic.topic, partitions=[unknown_partition(one.partition, error.code) for one in topic.partitions]
        )
        for topic in call.request.topics
    ]
    return FetchResponse(responses=responses)


HANDLERS: Final[Table] = {FetchRequest: (fetch, refuse)}
