"""Fetch sessions (KIP-227): remember each peer's partitions between its requests, so that idle partitions cost nothing.
Only *ready* partitions are read: those that were named, whose replica moved, or that have more records than fitted. A follower whose
partition is not ready had everything at its last fetch, whatever offset it named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.replica.core.isr import LONG_AGO
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import FETCH_SESSION_PARTITIONS_MAX
from barnabas.ports import Rng

if TYPE_CHECKING:
    from barnabas.broker.replica.core.machine import Replica

CONSUMER: Final = -1  # broker id of a peer that is not a follower

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0  # requests a new session with all its partitions
FINAL_EPOCH: Final = -1  # requests none and closes the one that it names
EPOCH_MAX: Final = 2**31 - 1

PartitionKey = tuple[str | bytes, int]  # topic name, or topic id since v13


class Parked(Protocol):
    """A request of a session that waits for records."""

    def on_progress(self, replica: Replica) -> None:
        """A partition of the session became ready, or moved again."""
        ...

    def overtaken(self) -> None:
        """The session's next request has arrived: answer this one now."""
        ...


class WantedPartition:
    """A partition of a peer's fetch, with its last answer. In a session it watches its replica."""

    __slots__ = (
        "current_leader_epoch",
        "drained",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "named",
        "partition",
        "replica",
        "sent_high_watermark",
        "sent_log_start_offset",
        "session",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        topic_id: bytes,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        log_start_offset: int = -1,
    ) -> None:
        self.key = key
        self.topic = topic  # "" if the peer uses topic ids
        self.topic_id = topic_id
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset  # the follower's own
        self.named = True  # a request named it since the last read
        self.drained = False  # the last read found no records and no error
        self.replica: Replica | None = None  # as of the last look-up
        self.session: FetchSession | None = None
        self.sent_high_watermark = -1  # -1: never sent, or an error was sent
        self.sent_log_start_offset = -1

    def attach(self, replica: Replica) -> None:
        self.unwatch()
        self.replica = replica

    def watch(self) -> None:
        """Watches the replica while the partition is not ready, while a request waits, and between two slices of a request."""
        if self.session is not None and self.replica is not None:
            self.replica.watchers[self] = None

    def unwatch(self) -> None:
        if self.replica is not None:
            self.replica.watchers.pop(self, None)
            self.replica = None

    def on_progress(self, replica: Replica) -> None:
        session = self.session
        if session is None:
            return
        self.drained = False  # it may have been read in slices, and not be answered yet
        if self.key not in session.ready:
            session.ready[self.key] = self
            if session.follower_id >= 0:
                replica.on_follower_idle(session.follower_id, session.used_ms)
        if session.parked is None:
            replica.watchers.pop(self, None)  # a disconnected peer must not be notified of every append
            if replica.failed:
                self.replica = None  # the session may stay for weeks, and with it the log of a deleted partition
        elif (
            session.follower_id < 0
            or not replica.is_leader
            or replica.log.log_end_offset != self.fetch_offset
            or self.lacks_high_watermark(replica)
        ):
            session.parked.on_progress(replica)

    @property
    def followed_ms(self) -> int:
        """Monotonic time at which the follower certainly still followed this leader; long ago if the partition left the session."""
        return LONG_AGO if self.session is None else self.session.sent_after_ms

    def lacks_high_watermark(self, replica: Replica) -> bool:
        """Whether a follower that serves consumers does not know the present high watermark yet."""
        session = self.session
        return session is not None and session.serves_consumers and replica.high_watermark != self.sent_high_watermark

    def has_news(self, error_code: int, high_watermark: int, log_start_offset: int, *, records: bool) -> bool:
        """Whether an incremental answer must carry the partition: records, error, or a moved offset; notes them as sent."""
        news = (
            records
            or error_code != 0
            or high_watermark != self.sent_high_watermark
            or log_start_offset != self.sent_log_start_offset
        )
        self.sent_high_watermark = -1 if error_code else high_watermark
        self.sent_log_start_offset = log_start_offset
        return news


class FetchSession:
    """One peer's session."""

    __slots__ = (
        "by_id",
        "created_ms",
        "epoch",
        "follower_id",
        "parked",
        "ready",
        "sent_after_ms",
        "serves_consumers",
        "session_id",
        "standing",
        "used_before_ms",
        "used_ms",
        "wanted",
    )

    def __init__(
        self, session_id: int, by_id: bool, now_ms: int, follower_id: int = CONSUMER, *, serves_consumers: bool = False
    ) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.follower_id = follower_id  # broker id of a follower, else CONSUMER
        # a moved high watermark is sent at once: consumers read from this follower (KIP-392)
        self.serves_consumers = serves_consumers
        self.created_ms = now_ms
        self.used_ms = self.used_before_ms = now_ms  # times of the last request and of the one before it
        # The peer sent its last request after this monotonic time: a follower has two requests in flight at most, so it
        # sends one when the answer to the last but one has arrived. A request itself may be old, by the network or a suspended process.
        self.sent_after_ms = LONG_AGO
        self.epoch = 1  # epoch of the next request
        self.wanted: dict[PartitionKey, WantedPartition] = {}  # all partitions of the session
        self.ready: dict[PartitionKey, WantedPartition] = {}  # partitions to read, in this order
        self.parked: Parked | None = None  # the waiting request, if any
        # `Access.standing` of the client that may read all partitions that are not ready; None: unknown
        self.standing: object = None

    def begin(self, wanted: dict[PartitionKey, WantedPartition]) -> None:
        """Adopts the partitions of a new session, with the dict itself: a session may have 100,000."""
        self.wanted = wanted
        self.ready = wanted.copy()
        for each in wanted.values():
            each.session = self

    def add(self, wanted: Iterable[tuple[PartitionKey, WantedPartition]]) -> None:
        for key, new in wanted:
            old = self.wanted.get(key)
            if old is None:
                old = self.wanted[key] = new
                new.session = self
            else:
                old.fetch_offset = new.fetch_offset
                old.max_bytes = new.max_bytes
                old.current_leader_epoch = new.current_leader_epoch
                old.last_fetched_epoch = new.last_fetched_epoch
                old.log_start_offset = new.log_start_offset
                old.named = True
            self.ready[key] = old

    def forget(self, key: PartitionKey) -> None:
        self.ready.pop(key, None)
        wanted = self.wanted.pop(key, None)
        if wanted is not None:
            replica = wanted.replica
            wanted.unwatch()
            wanted.session = None
            if self.follower_id >= 0 and replica is not None:
                replica.refuse_unless_leading()  # the follower may have another leader

    def on_answered(self, wanted: WantedPartition) -> None:
        """A partition read to its end is no longer ready; others go to the end of the order, so that a small `max_bytes` starves none."""
        key = wanted.key
        if self.ready.pop(key, None) is None:
            return
        if wanted.drained:
            wanted.watch()
        else:
            self.ready[key] = wanted


class FetchSessions:
    """The cache of a node's sessions: `max.incremental.fetch.session.cache.slots`, `min.incremental.fetch.session.eviction.ms`.

    `reads_by_rack`: consumers may be sent to followers.
    """

    def __init__(
        self,
        rng: Rng,
        monotonic_ms: Callable[[], int],
        *,
        slots: int,
        eviction_ms: int = 120_000,
        reads_by_rack: bool = False,
    ) -> None:
        self._rng = rng
        self._monotonic_ms = monotonic_ms
        self._slots = slots
        self._eviction_ms = eviction_ms
        self.reads_by_rack = reads_by_rack
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    @property
    def _partitions(self) -> int:
        return sum([len(session.wanted) for session in self._sessions.values()])

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(
        self,
        session_id: int,
        epoch: int,
        by_id: bool,
        changed: Iterable[tuple[PartitionKey, WantedPartition]],
        forgotten: Iterable[PartitionKey],
    ) -> FetchSession | None:
        """The session of an incremental request, after its changes; None if no partitions remain in it.

        Raises BrokerError(FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR).
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_id != by_id:
            raise BrokerError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.parked is not None:
            session.parked.overtaken()
        session.add(changed)
        for key in forgotten:
            session.forget(key)
        if not session.wanted:
            self.close(session_id)
            return None
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.sent_after_ms, session.used_before_ms = session.used_before_ms, session.used_ms
        session.used_ms = self._monotonic_ms()
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def create(
        self, by_id: bool, wanted: dict[PartitionKey, WantedPartition], follower_id: int = CONSUMER
    ) -> FetchSession | None:
        """A new session for these partitions; None if the cache is full of sessions with higher priority."""
        now_ms = self._monotonic_ms()
        if self._partitions + len(wanted) > FETCH_SESSION_PARTITIONS_MAX and not self._evict(len(wanted), now_ms):
            return None
        if self._partitions + len(wanted) > FETCH_SESSION_PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._slots and not self._evict(len(wanted), now_ms):
            return None
        session_id = self._rng.randrange(2**31 - 1) + 1
        while session_id in self._sessions:
            session_id = self._rng.randrange(2**31 - 1) + 1
        session = self._sessions[session_id] = FetchSession(
            session_id, by_id, now_ms, follower_id, serves_consumers=self.reads_by_rack and follower_id >= 0
        )
        session.begin(wanted)
        return session

    def untold(self, session_id: int, topic: str | bytes, partition: int) -> None:
        """An answer with the partition was not sent: the next one carries it."""
        session = self._sessions.get(session_id)
        wanted = None if session is None else session.wanted.get((topic, partition))
        if session is not None and wanted is not None:
            wanted.sent_high_watermark = -1
            wanted.drained = False
            session.ready[wanted.key] = wanted

    def close(self, session_id: int) -> None:
        """No error if the session does not exist."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            if session.parked is not None:
                session.parked.overtaken()
            for key in list(session.wanted):
                session.forget(key)

    def _evict(self, size: int, now_ms: int) -> bool:
        """Makes room for `size` partitions if possible: a session silent for the eviction time, else a smaller one older than that."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > self._eviction_ms:
            self.close(oldest.session_id)
            return True
        smallest = min(
            (one for one in self._sessions.values() if now_ms - one.created_ms > self._eviction_ms),
            key=lambda one: len(one.wanted),
            default=None,
        )
        if smallest is not None and len(smallest.wanted) < size:
            self.close(smallest.session_id)
            return True
        return False
