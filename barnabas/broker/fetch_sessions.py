"""Fetch sessions: what each consumer or follower wants, remembered between its requests, so that idle partitions cost nothing.

Driven by: the session id and epoch of Fetch requests; the answers, which tell what the peer knows by now.
Emits: the partitions a request is about, and which of them belong into its answer.

Rules (KIP-227): epoch 0 asks for a new session with all its partitions, -1 for none and closes the one it names; any other
must be the session's present epoch, and then the request carries only changes. An incremental answer carries only partitions with
records, with a moved high watermark or log start, with an error, or never answered before. Partitions with records go to
the end of the order, so that a small `max_bytes` starves none. A full cache evicts who was silent for the
eviction time, else a smaller session older than it; else the new one gets id 0: it lives without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Rng

__all__ = ["NO_SESSION", "FetchSession", "FetchSessions", "WantedPartition"]

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1

PartitionKey = tuple[str | bytes, int]  # topic name, or topic id since version 13


class WantedPartition:
    """What a peer wants of one partition, and what it was told of it last."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "told_high_watermark",
        "told_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
    ) -> None:
        self.topic = topic  # "" where the peer goes by topic id
        self.topic_id = topic_id
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.told_high_watermark = -1  # -1: never told, or told an error
        self.told_log_start_offset = -1

    def has_news(self, error_code: int, high_watermark: int, log_start_offset: int, *, records: bool) -> bool:
        """Whether an incremental answer must carry the partition; takes note of what is told with it."""
        news = (
            records
            or error_code != 0
            or high_watermark != self.told_high_watermark
            or log_start_offset != self.told_log_start_offset
        )
        self.told_high_watermark = -1 if error_code else high_watermark
        self.told_log_start_offset = log_start_offset
        return news


class FetchSession:
    """One peer's session."""

    __slots__ = ("by_id", "created_ms", "epoch", "session_id", "used_ms", "wanted")

    def __init__(self, session_id: int, by_id: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.epoch = 1  # what the next request must carry
        self.wanted: dict[PartitionKey, WantedPartition] = {}

    def add(self, wanted: Iterable[tuple[PartitionKey, WantedPartition]]) -> None:
        """Takes over changed and new partitions."""
        for key, new in wanted:
            old = self.wanted.get(key)
            if old is None:
                self.wanted[key] = new
            else:
                old.fetch_offset = new.fetch_offset
                old.max_bytes = new.max_bytes
                old.current_leader_epoch = new.current_leader_epoch
                old.last_fetched_epoch = new.last_fetched_epoch

    def to_the_end(self, key: PartitionKey) -> None:
        """The partition had records: others come first next time."""
        wanted = self.wanted.pop(key, None)
        if wanted is not None:
            self.wanted[key] = wanted


class FetchSessions:
    """The cache of a node's sessions.

    Args:
        slots: `max.incremental.fetch.session.cache.slots`.
        eviction_ms: `min.incremental.fetch.session.eviction.ms`.
    """

    def __init__(self, rng: Rng, monotonic_ms: Callable[[], int], *, slots: int, eviction_ms: int = 120_000) -> None:
        self._rng = rng
        self._monotonic_ms = monotonic_ms
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

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
        """The session of an incremental request, with its changes taken over; None where nothing is left in it.

        Raises:
            BrokerError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_id != by_id:
            raise BrokerError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.add(changed)
        for key in forgotten:
            session.wanted.pop(key, None)
        if not session.wanted:
            self.close(session_id)
            return None
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_ms = self._monotonic_ms()
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def create(self, by_id: bool, wanted: dict[PartitionKey, WantedPartition]) -> FetchSession | None:
        """A new session for these partitions; None where the cache is full of sessions worth more."""
        now_ms = self._monotonic_ms()
        if len(self._sessions) >= self._slots and not self._evict(len(wanted), now_ms):
            return None
        session_id = self._rng.randrange(2**31 - 1) + 1
        while session_id in self._sessions:
            session_id = self._rng.randrange(2**31 - 1) + 1
        session = self._sessions[session_id] = FetchSession(session_id, by_id, now_ms)
        session.wanted = wanted
        return session

    def close(self, session_id: int) -> None:
        """Forgets a session; no error where there is none."""
        self._sessions.pop(session_id, None)

    def _evict(self, size: int, now_ms: int) -> bool:
        """Makes room for a session of `size` partitions, if any may go."""
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
