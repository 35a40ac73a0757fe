"""FetchPlan: decides what a follower fetches next from one leader. The client's side of a fetch session (KIP-227)."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from barnabas.broker.replica.core import follower_log
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.core.throttle import ReplicationQuota, is_throttled
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from barnabas.storage.partition_log import RESERVED_BYTES_MIN
from barnabas.work import Steps

log = logger("kafka.server.ReplicaFetcherThread")

INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 1
IN_FLIGHT_MAX: Final = 2
PARTITIONS_PER_REQUEST: Final = 10_000  # in one request: a request of 100,000 elements is refused
FOR_AN_ANSWER: Final = 2**62  # pause of a partition that has pending work, or asks for the leader's log start and end
THROTTLE_PAUSE_MS: Final = 100  # of a throttled partition, before the next quota check
SEGMENTS_AT_ONCE: Final = 8  # begun by one answer, half a millisecond each; the records after them are fetched again
# of a partition whose records begin many segments: unwritten records are fetched once more
REST_BYTES_MAX: Final = 16_384
PAUSE_MS_MIN: Final = 10  # after a partition's first refusal; doubled by each further one

_Key = tuple[bytes, int]

# Refusals that end once leader and follower have the same metadata: not logged.
_PASSING: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class FetchLimits(NamedTuple):
    """`replica.fetch.*` of the configuration."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    response_bytes_max: int = 10_485_760
    partition_bytes_max: int = 1_048_576
    backoff_ms: int = 1_000


class _Following:
    """One partition of the plan."""

    __slots__ = (
        "_last_line",
        "bytes_max",
        "epoch",
        "log_start_offset",
        "named_by",
        "offset",
        "pause_ms",
        "paused_until_ms",
        "replica",
    )

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.named_by = 0  # number of the request that named it last; 0: it is not in the session
        self.epoch = -1  # as named in that request
        self.offset = -1
        self.log_start_offset = -1
        self.bytes_max: int | None = None  # of the next answer, if less than usual
        self.pause_ms = 0
        self.paused_until_ms: int | None = None
        self._last_line = ""  # last log line since the last successful fetch

    def log_change(self, level: int, template: str, *values: object) -> None:
        """Logs a line unless the previous attempt failed in the same way."""
        text = template % values
        if text != self._last_line:
            self._last_line = text
            log.log(level, template, *values)

    def on_taken(self) -> None:
        self.pause_ms = 0
        self._last_line = ""


class FetchPlan:
    """The fetches of one node from one leader.

    A request names changes since the previous one: new partitions, moved offsets, epochs. Two may be pending: the second carries changes
    that cannot wait for a long-polled first. A refused partition leaves the session and is added again after a pause, short at first,
    because the leader may learn of its election a little later. Invariants: a response's part for a partition counts only if no later
    request named it, and only in the leader epoch that was named; every append, truncation or pause makes the next request name the
    partition, or forget it.
    """

    def __init__(self, node_id: int, limits: FetchLimits, quota: ReplicationQuota | None = None) -> None:
        """`quota` limits all fetchers' reads of throttled replicas; None: nothing is throttled."""
        self._node_id = node_id
        self._limits = limits
        self._quota = quota
        self._following: dict[_Key, _Following] = {}
        self._changed: dict[_Key, None] = {}
        self._forgotten: dict[_Key, None] = {}
        self._paused: dict[_Key, int] = {}  # end of the pause; without those FOR_AN_ANSWER
        self._out_of_range: dict[_Key, Replica] = {}
        self._pending_work: dict[_Key, Steps[bool]] = {}  # truncations and long appends that have not begun
        self._session_id = 0
        self._session_epoch = INITIAL_EPOCH
        self._broker_epoch = -1  # of the last request
        self._sent = 0  # requests
        self._in_flight: list[int] = []
        self._segments_left = 0  # that the present answer may begin

    def __len__(self) -> int:
        return len(self._following)

    # -- followed partitions

    def follow(self, replica: Replica) -> None:
        """The replica follows this leader, or a new leader epoch began: fetches it at once."""
        key = (replica.topic_id, replica.partition)
        one = self._following.get(key)
        if one is None or one.replica is not replica:
            self._drop(key)
            self._following[key] = _Following(replica)
        elif one.epoch == replica.leader_epoch and one.paused_until_ms is None:
            return
        else:
            one.paused_until_ms = None
            one.pause_ms = 0
            self._paused.pop(key, None)
        self._out_of_range.pop(key, None)
        self._pending_work.pop(key, None)
        self._changed[key] = None

    def unfollow(self, replica: Replica) -> None:
        key = (replica.topic_id, replica.partition)
        if key in self._following:
            self._drop(key)
            del self._following[key]

    def _drop(self, key: _Key) -> None:
        self._changed.pop(key, None)
        self._out_of_range.pop(key, None)
        self._pending_work.pop(key, None)
        self._paused.pop(key, None)
        one = self._following.get(key)
        if one is not None and one.named_by:
            one.named_by = 0
            self._forgotten[key] = None

    # -- requests

    def resume(self, now_ms: int) -> int | None:
        """Resumes partitions whose pause is over, and pauses throttled ones. Returns the end of the next pause, if any."""
        for key in [key for key, until_ms in self._paused.items() if until_ms <= now_ms]:
            del self._paused[key]
            self._following[key].paused_until_ms = None
            self._changed[key] = None
        if self._quota is not None and self._quota.exceeded(now_ms):
            self._hold_throttled(now_ms)
        return min(self._paused.values(), default=None) if self._paused else None

    def _hold_throttled(self, now_ms: int) -> None:
        for key in list(self._changed):
            one = self._following[key]
            if self._node_id not in one.replica.isr and self._is_throttled(one.replica):
                self._pause(key, one, now_ms, THROTTLE_PAUSE_MS)

    def _is_throttled(self, replica: Replica) -> bool:
        named = replica.log.config.follower_replication_throttled_replicas
        return is_throttled(named, replica.partition, self._node_id)

    def next_request(self, broker_epoch: int) -> FetchRequest | None:
        """None if there is nothing to fetch, or enough requests are pending.

        A leader learns the broker epoch of a partition's fetches when a request names the partition, so all are named after the broker has
        registered again (KIP-903).
        """
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._changed.update((key, None) for key, one in self._following.items() if one.paused_until_ms is None)
        news = bool(self._changed or self._forgotten)
        if len(self._in_flight) >= (IN_FLIGHT_MAX if news else 1):
            return None
        full = self._session_epoch == INITIAL_EPOCH
        if full:
            if self._in_flight:
                return None  # its answer names the session
            named = [key for key, one in self._following.items() if one.paused_until_ms is None]
            self._forgotten.clear()
        else:
            named = list(self._changed)
            for key in named:
                # The leader removes forgotten partitions after it adds named ones: it would never send this one again.
                self._forgotten.pop(key, None)
        later = named[PARTITIONS_PER_REQUEST:]  # the next requests name these
        if later:
            del named[PARTITIONS_PER_REQUEST:]
            if full:  # a leader without a session gets the others first next time
                for key in named:
                    self._following[key] = self._following.pop(key)
        if not named and (full or not (self._forgotten or any(one.named_by for one in self._following.values()))):
            return None  # nothing is followed, or all of it is paused
        self._sent += 1
        self._in_flight.append(self._sent)
        limits = self._limits
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=limits.wait_ms_max,
            min_bytes=limits.bytes_min,
            max_bytes=limits.response_bytes_max,
            isolation_level=0,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=self._topics(named),
            forgotten_topics_data=_by_topic(self._forgotten),
            rack_id="",
        )
        self._changed = dict.fromkeys(later)
        self._forgotten.clear()
        if not full:
            self._session_epoch = 1 if self._session_epoch == EPOCH_MAX else self._session_epoch + 1
        return request

    def _topics(self, named: list[_Key]) -> list[FetchTopic]:
        topics: dict[bytes, FetchTopic] = {}
        for key in named:
            one = self._following[key]
            replica = one.replica
            one.named_by = self._sent
            one.epoch = replica.leader_epoch
            one.offset = replica.log.log_end_offset
            one.log_start_offset = replica.log.log_start_offset
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0], partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=key[1],
                    current_leader_epoch=one.epoch,
                    fetch_offset=one.offset,
                    last_fetched_epoch=replica.last_fetched_epoch,
                    log_start_offset=one.log_start_offset,
                    partition_max_bytes=self._limits.partition_bytes_max if one.bytes_max is None else one.bytes_max,
                )
            )
        return list(topics.values())

    # -- responses

    def on_lost(self) -> None:
        """The connection and its pending requests are lost: the next request begins a session with all partitions."""
        self._in_flight.clear()
        self._restart()

    def _restart(self) -> None:
        self._session_epoch = INITIAL_EPOCH
        self._forgotten.clear()
        for key, one in self._following.items():
            one.named_by = 0
            if one.paused_until_ms is None:
                self._changed[key] = None

    def on_response(self, response: FetchResponse, now_ms: int) -> list[Replica]:
        """Applies the leader's response. Returns the changed replicas: they may need a flush."""
        number = self._in_flight.pop(0)
        if response.error_code:
            if not self._in_flight:
                self._restart()
            else:
                self._session_epoch = INITIAL_EPOCH  # the other pending request will fail in the same way
            return []
        if self._session_epoch == INITIAL_EPOCH:
            if self._in_flight:
                return []
            self._session_id = response.session_id
            self._session_epoch = 1
        touched = []
        self._segments_left = SEGMENTS_AT_ONCE
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                one = self._following.get(key)
                # Named again since, or forgotten: another answer follows, or none is needed.
                if one is not None and one.named_by and one.named_by <= number and self._take(key, one, data, now_ms):
                    touched.append(one.replica)
        if not response.session_id:
            self._session_id = 0
            self._restart()  # the leader keeps no session for this follower: name everything
        return touched

    def _take(self, key: _Key, one: _Following, data: PartitionData, now_ms: int) -> bool:
        """Applies one partition's part. Returns whether its log changed."""
        replica = one.replica
        code = data.error_code
        changed = False
        try:
            if code:
                self._refused(key, one, ErrorCode(code), now_ms)
                return False
            if data.diverging_epoch.epoch >= 0:
                diverging = data.diverging_epoch
                self._wait_for(
                    key, one, follower_log.on_diverged(replica, one.epoch, diverging.epoch, diverging.end_offset)
                )
                return False
            records = data.records or b""
            if len(records) > RESERVED_BYTES_MIN:
                self._count(replica, records, now_ms)
                append = follower_log.on_fetched_long(
                    replica,
                    one.epoch,
                    one.offset,
                    records,
                    data.high_watermark,
                    data.log_start_offset,
                    SEGMENTS_AT_ONCE,
                )
                self._wait_for(key, one, append)
                return False
            segments = len(replica.log.segments)
            taken = follower_log.on_fetched(
                replica,
                one.epoch,
                one.offset,
                records,
                data.high_watermark,
                data.log_start_offset,
                self._segments_left,
            )
            self._segments_left = max(self._segments_left - max(len(replica.log.segments) - segments, 0), 0)
            one.bytes_max = None if self._segments_left else min(REST_BYTES_MAX, self._limits.partition_bytes_max)
            changed = taken and bool(records)
            if changed:
                self._count(replica, records, now_ms)
        except BrokerError as error:
            self._failed(key, one, error, now_ms)
            return False
        one.on_taken()
        partition_log = replica.log
        if (
            one.offset != partition_log.log_end_offset
            or one.log_start_offset != partition_log.log_start_offset
            or changed
        ):
            self._changed[key] = None
        return changed

    def _count(self, replica: Replica, records: Buffer, now_ms: int) -> None:
        if self._quota is not None and self._is_throttled(replica):
            self._quota.record(len(records), now_ms)

    def _failed(self, key: _Key, one: _Following, error: BrokerError, now_ms: int) -> None:
        one.log_change(
            logging.ERROR,
            "Follower cannot apply its leader's answer: partition=%s leader=%d error=%s",
            one.replica,
            one.replica.leader_id,
            error,
        )
        self._pause(key, one, now_ms, self._limits.backoff_ms)

    def _refused(self, key: _Key, one: _Following, code: ErrorCode, now_ms: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._drop(key)
            one.paused_until_ms = FOR_AN_ANSWER
            self._out_of_range[key] = one.replica
            return
        if code not in _PASSING:
            one.log_change(
                logging.WARNING,
                "Leader refuses to be followed: partition=%s leader=%d error=%s",
                one.replica,
                one.replica.leader_id,
                code.name,
            )
        self._pause(key, one, now_ms, min(max(one.pause_ms * 2, PAUSE_MS_MIN), self._limits.backoff_ms))

    def _pause(self, key: _Key, one: _Following, now_ms: int, pause_ms: int) -> None:
        self._drop(key)
        one.pause_ms = pause_ms
        one.paused_until_ms = self._paused[key] = now_ms + pause_ms

    # -- long work and bounds: the partition is not fetched until they are done

    def _wait_for(self, key: _Key, one: _Following, work: Steps[bool]) -> None:
        self._drop(key)
        one.paused_until_ms = FOR_AN_ANSWER
        self._pending_work[key] = work

    def pending_work(self) -> list[tuple[Replica, Steps[bool]]]:
        """Truncations and long appends to run, each returned once: then call `on_work_done`."""
        found = [(self._following[key].replica, work) for key, work in self._pending_work.items()]
        self._pending_work.clear()
        return found

    def on_work_done(self, replica: Replica, error: BrokerError | None, now_ms: int) -> None:
        """The work has ended, or was given up because the log, its leader or the leader's epoch has changed in between."""
        one = self._awaiting(replica)
        if one is None:
            return
        if error is not None:
            self._failed((replica.topic_id, replica.partition), one, error, now_ms)
        else:
            self._go_on(one)

    def out_of_range(self) -> list[Replica]:
        """Replicas whose log end the leader does not hold, each once: request its bounds, then call `on_bounds`."""
        found = list(self._out_of_range.values())
        self._out_of_range.clear()
        return found

    def on_bounds(self, replica: Replica, leader_epoch: int, bounds: tuple[int, int] | None, now_ms: int) -> None:
        """Applies log start and log end of the leader in `leader_epoch`; None if it did not answer."""
        one = self._awaiting(replica)
        if one is None:
            return
        key = (replica.topic_id, replica.partition)
        if bounds is None:
            self._pause(key, one, now_ms, self._limits.backoff_ms)
        else:
            self._wait_for(key, one, follower_log.on_out_of_range(replica, leader_epoch, *bounds))

    def _awaiting(self, replica: Replica) -> _Following | None:
        one = self._following.get((replica.topic_id, replica.partition))
        return one if one is not None and one.replica is replica and one.paused_until_ms == FOR_AN_ANSWER else None

    def _go_on(self, one: _Following) -> None:
        one.on_taken()
        one.paused_until_ms = None
        self._changed[one.replica.topic_id, one.replica.partition] = None


def _by_topic(keys: dict[_Key, None]) -> list[ForgottenTopic]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in keys:
        topics.setdefault(topic_id, []).append(partition)
    return [ForgottenTopic(topic_id=topic_id, partitions=numbers) for topic_id, numbers in topics.items()]
