"""Fetch (key 1), versions 4 to 18: record batches out of partitions, for consumers.

Behaviour: whole batches up to the high watermark, or under read_committed up to the last stable offset together with the aborted
transactions among them. `max_bytes` bounds the answer and each partition's own limit its part, but the first batch always
fits. With fewer than `min_bytes` the request waits up to `max_wait_ms`; an error, a diverging epoch or a lost leadership answers at
once. Idle partitions of a session are not answered (KIP-227, `fetch_sessions`).

Version notes: v7 sessions; v9 the client's leader epoch is checked (KIP-320); v12 diverging epochs (KIP-595) and leader hints
(KIP-951, endpoints since v16); v13 topics by id; v11 the rack is read and not used: only leaders serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    PartitionKey,
    WantedPartition,
)
from barnabas.broker.handlers.leader_hints import add_fetch_hints
from barnabas.broker.replica.machine import Replica
from barnabas.broker.router import Call, Pending, handles
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["fetch", "refuse"]

READ_COMMITTED: Final = 1
FIRST_BY_ID: Final = 13
UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

_Wanted = dict[PartitionKey, WantedPartition]


class _Fetch:
    """One request while it is served, and while it waits: then it watches its replicas."""

    __slots__ = (
        "_due",
        "_release_bytes",
        "_stable",
        "call",
        "committed",
        "deadline",
        "full",
        "max_bytes",
        "min_bytes",
        "node",
        "pending",
        "replicas",
        "session",
        "urgent",
        "wanted",
    )

    def __init__(self, node: Node, call: Call[FetchRequest], wanted: _Wanted, session: FetchSession | None) -> None:
        request = call.request
        self.node = node
        self.call = call
        self.wanted = wanted
        self.session = session
        self.full = session is None or request.session_epoch <= INITIAL_EPOCH
        self.committed = request.isolation_level == READ_COMMITTED
        self.max_bytes = min(request.max_bytes, node.server.answer_bytes_max(node.fetch_max_bytes))
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.pending: Pending | None = None
        self.deadline: Any = None
        self.replicas: list[Replica] = []
        self.urgent = False  # an error or a divergence: nothing to wait for
        self._due = False
        self._release_bytes = 0  # size of the watched logs at which a new look is worth it
        self._stable: list[int] = []

    # -- reading

    def read(self) -> tuple[list[tuple[PartitionKey, PartitionData]], int]:
        """One pass over all partitions: their data, and the bytes of records in it."""
        left = self.max_bytes
        total = 0
        self.urgent = False
        out = []
        unknown = []  # behind all others, as in Kafka
        for key, wanted in self.wanted.items():
            data = self._read_one(wanted, left, at_least_one=total == 0)
            if data.error_code in UNKNOWN:
                unknown.append((key, data))
                continue
            size = len(data.records or b"")
            total += size
            left = max(left - size, 0)
            out.append((key, data))
        return out + unknown, total

    def _read_one(self, wanted: WantedPartition, left: int, *, at_least_one: bool) -> PartitionData:
        replicas = self.node.replicas
        name = wanted.topic or replicas.topic_name(wanted.topic_id)
        offset = wanted.fetch_offset
        try:
            if name is None:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
            replica = replicas.get(name, wanted.partition)
            if replica is None:
                raise BrokerError(replicas.absence(name, wanted.partition))
            if not wanted.topic and replica.topic_id != wanted.topic_id:
                raise BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID)
            replica.check_epoch(wanted.current_leader_epoch)
            high_watermark = replica.high_watermark
            stable = replica.log.last_stable_offset(high_watermark)
            data = PartitionData(
                partition_index=wanted.partition,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                log_start_offset=replica.log.log_start_offset,
                aborted_transactions=[] if self.committed else None,
                records=b"",
            )
            if wanted.last_fetched_epoch >= 0 and self._diverges(replica, wanted, data):
                return data
            end = stable if self.committed else high_watermark
            if offset == end:
                return data
            part = replica.read(
                offset, min(left, wanted.max_bytes), committed=self.committed, at_least_one=at_least_one
            )
        except BrokerError as error:
            self.urgent = True
            return PartitionData(
                partition_index=wanted.partition,
                error_code=error.code,
                high_watermark=-1,
                aborted_transactions=[] if error.code in UNKNOWN else None,
                records=b"",
            )
        if part.records:
            data.records = part.records
            if self.committed:
                data.aborted_transactions = [
                    AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
                    for one in replica.aborted_transactions(offset, part.next_offset)
                ]
        return data

    def _diverges(self, replica: Replica, wanted: WantedPartition, data: PartitionData) -> bool:
        """KIP-595: whether the peer's last epoch ends elsewhere in our log; says where."""
        epoch, end_offset = replica.log.epochs.end_offset_for_epoch(
            wanted.last_fetched_epoch, replica.log.log_end_offset
        )
        if end_offset < 0:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch >= wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
            return False
        data.diverging_epoch.epoch = epoch
        data.diverging_epoch.end_offset = end_offset
        self.urgent = True
        return True

    # -- answering

    def answer(self, parts: list[tuple[PartitionKey, PartitionData]]) -> FetchResponse:
        """The response of a pass; tells the session what its peer knows from now on."""
        session = self.session
        topics: list[FetchableTopicResponse] = []
        last: str | bytes | None = None
        for key, data in parts:
            if session is not None:
                records = bool(data.records)
                wanted = self.wanted.get(key)
                if wanted is None:  # forgotten by a later request while this one waited
                    continue
                news = wanted.has_news(data.error_code, data.high_watermark, data.log_start_offset, records=records)
                if records and not self.full:
                    session.to_the_end(key)
                if not (news or self.full or data.diverging_epoch.epoch >= 0):
                    continue
            if key[0] != last:
                last = key[0]
                topics.append(
                    FetchableTopicResponse(topic=last)
                    if isinstance(last, str)
                    else FetchableTopicResponse(topic_id=last)
                )
            topics[-1].partitions.append(data)
        response = FetchResponse(session_id=NO_SESSION if session is None else session.session_id, responses=topics)
        if self.urgent:
            add_fetch_hints(self.node, self.call.version, response)
        return response

    # -- waiting

    def wait(self, readable_bytes: int) -> Pending:
        """Watches the partitions until there is enough to read or the time is up."""
        get = self.node.replicas.get
        for wanted in self.wanted.values():
            name = wanted.topic or self.node.replicas.topic_name(wanted.topic_id)
            replica = None if name is None else get(name, wanted.partition)
            if replica is not None:
                replica.watchers[self] = None
                self.replicas.append(replica)
        self._release_bytes = self._log_bytes() + self.min_bytes - readable_bytes
        if self.committed:
            self._stable = [replica.last_stable_offset for replica in self.replicas]
        self.pending = Pending(on_closed=self._stop)
        self.deadline = self.node.call_later(self.call.request.max_wait_ms, self._on_deadline)
        return self.pending

    def on_progress(self, replica: Replica) -> None:
        """A watched log moved: looks at it at the end of this wake-up, once."""
        if not self._due:
            self._due = True
            self.node.soon(self._look)

    def _log_bytes(self) -> int:
        return sum(replica.log.size_bytes for replica in self.replicas)

    def _look(self) -> None:
        self._due = False
        if self.pending is None or self.pending.resolved:
            return
        if self.min_bytes > 1 and all(replica.is_leader for replica in self.replicas):
            stable = [replica.last_stable_offset for replica in self.replicas] if self.committed else self._stable
            if stable == self._stable and self._log_bytes() < self._release_bytes:
                return
            self._stable = stable
        parts, size = self.read()
        if size >= self.min_bytes or self.urgent:
            self._resolve(parts)

    def _on_deadline(self) -> None:
        if self.pending is not None and not self.pending.resolved:
            parts, _ = self.read()
            self._resolve(parts)

    def _resolve(self, parts: list[tuple[PartitionKey, PartitionData]]) -> None:
        self._stop()
        if self.pending is not None:
            self.pending.resolve(self.answer(parts))

    def _stop(self) -> None:
        self.deadline.cancel()
        for replica in self.replicas:
            replica.watchers.pop(self, None)
        self.replicas = []


@handles(FetchRequest)
def fetch(node: Node, call: Call[FetchRequest]) -> FetchResponse | Pending:
    """Reads the partitions of a request or of its session; see the module's docstring."""
    request = call.request
    wanted, session = _context(node, call)
    one = _Fetch(node, call, wanted, session)
    parts, size = one.read()
    if size >= one.min_bytes or one.urgent or request.max_wait_ms <= 0 or not wanted:
        return one.answer(parts)
    return one.wait(size)


def refuse(call: Call[FetchRequest], error: BrokerError) -> FetchResponse:
    """The error of the whole request, without partitions; before version 7 each partition carries it."""
    if call.version >= 7:
        return FetchResponse(error_code=error.code)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(partition_index=one.partition, error_code=error.code, high_watermark=-1, records=b"")
                    for one in topic.partitions
                ],
            )
            for topic in call.request.topics
        ]
    )


def _context(node: Node, call: Call[FetchRequest]) -> tuple[_Wanted, FetchSession | None]:
    """The partitions this request is about, and its session if it has one.

    Raises:
        BrokerError: as `FetchSessions.resume`.
    """
    request = call.request
    by_id = call.version >= FIRST_BY_ID
    named: _Wanted = {}
    for topic in request.topics:
        name: str | bytes = topic.topic_id if by_id else topic.topic
        for one in topic.partitions:
            named[name, one.partition] = WantedPartition(
                topic.topic,
                topic.topic_id,
                one.partition,
                one.fetch_offset,
                one.partition_max_bytes,
                one.current_leader_epoch,
                one.last_fetched_epoch,
            )
    sessions = node.fetch_sessions
    if request.session_epoch <= INITIAL_EPOCH:
        if request.session_id != NO_SESSION:
            sessions.close(request.session_id)
        if request.session_epoch <= FINAL_EPOCH:
            return named, None
        return named, sessions.create(by_id, named)
    forgotten = [
        (topic.topic_id if by_id else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    session = sessions.resume(request.session_id, request.session_epoch, by_id, named.items(), forgotten)
    return (named, None) if session is None else (session.wanted, session)
