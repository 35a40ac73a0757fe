"""Position validation (KIP-320): checks positions against the present leader's log, and resets diverging ones.
A truncation below undelivered records only refetches. Below delivered ones the consumer goes back with a warning; with
`auto_offset_reset="none"` it raises LogTruncated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from barnabas.client.consumer.core.fetch_state import PartitionState
from barnabas.client.errors import KafkaError, LogTruncated, UnsupportedByBroker, code_of, error_for
from barnabas.client.net.core.metadata import NO_ID, ClusterMetadata
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.ports import Rng
from barnabas.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

# then the named leader is asked: the committed offset may be of a former topic of that name
OLD_METADATA_MS: Final = 60_000

log = logging.getLogger("barnabas.client.consumer")


class InFlightCheck(NamedTuple):
    """An OffsetForLeaderEpoch request. `asked` has each partition's state and the leader epoch of the check."""

    node_id: int
    request: OffsetForLeaderEpochRequest
    asked: dict[TopicPartition, tuple[PartitionState, int]]


class _Fetcher(Protocol):
    """What the checks need from the fetcher."""

    metadata_wanted: bool

    def seek(self, tp: TopicPartition, position: int | None, reset: str | None = None, *, epoch: int = -1) -> None: ...

    def refetch(self, state: PartitionState) -> None: ...

    def fail(self, state: PartitionState, error: KafkaError) -> None: ...


class PositionChecks:
    """Checks of one consumer. `policy` is `auto_offset_reset`."""

    def __init__(
        self, fetcher: _Fetcher, metadata: ClusterMetadata, rng: Rng, *, policy: str, retry_backoff_ms: int
    ) -> None:
        self._fetcher = fetcher
        self._metadata = metadata
        self._rng = rng
        self._policy = policy
        self._retry_backoff_ms = retry_backoff_ms
        self._wanted: dict[int, list[PartitionState]] = {}

    def on_topic(self, state: PartitionState) -> None:
        info = self._metadata.topics.get(state.tp.topic)
        state.info = info
        if info is None or info.topic_id == NO_ID:
            return
        if state.topic_id not in (NO_ID, info.topic_id):
            state.trail.begin()
            state.leader_epoch = -1
        state.topic_id = info.topic_id

    def holds(self, state: PartitionState, leader_epoch: int, node_id: int, now_ms: int) -> bool:
        """Whether this leader's log contains the position. If unknown, starts a check or requests newer metadata."""
        if state.leader_epoch == leader_epoch or state.trail.latest < 0 or leader_epoch < 0:
            state.leader_epoch = leader_epoch
            return True
        if leader_epoch < state.trail.latest and self._awaits_metadata(state, node_id, now_ms):
            return False
        if state.check is None:
            self._wanted.setdefault(node_id, []).append(state)
        return False

    def requests(self, ready: Callable[[int], bool]) -> list[InFlightCheck]:
        wanted, self._wanted = self._wanted, {}
        return [self._request(node_id, states) for node_id, states in wanted.items() if ready(node_id)]

    def on_unsent(self, check: InFlightCheck) -> None:
        for state, _ in self._current(check):
            state.check = None

    def on_failure(self, check: InFlightCheck, error: KafkaError, now_ms: int) -> None:
        """No response. If the broker does not support the request, the position counts as valid."""
        for state, leader_epoch in self._current(check):
            state.check = None
            if isinstance(error, UnsupportedByBroker):
                state.leader_epoch = leader_epoch
            else:
                self._fetcher.metadata_wanted = True
                state.retry_later(now_ms, self._retry_backoff_ms, self._rng)

    def on_answer(self, check: InFlightCheck, response: OffsetForLeaderEpochResponse, now_ms: int) -> None:
        found = {TopicPartition(topic.topic, p.partition): p for topic in response.topics for p in topic.partitions}
        for state, leader_epoch in self._current(check):
            state.check = None
            answer = found.get(state.tp)
            code = code_of(answer.error_code) if answer is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if answer is None or code is not ErrorCode.NONE:
                self._fetcher.metadata_wanted = True
                state.retry_later(now_ms, self._retry_backoff_ms, self._rng)
                if not code.retriable:
                    where = {"broker": check.node_id, "topic": state.tp.topic, "partition": state.tp.partition}
                    self._fetcher.fail(state, error_for(code, "the position cannot be checked", **where))  # type: ignore[arg-type]  # one dict of an int, a str and an int
                continue
            state.failing_since_ms = -1
            if answer.leader_epoch >= state.trail.latest and answer.end_offset >= state.fetch_offset:
                state.leader_epoch = leader_epoch
            else:
                self.on_diverging(state, answer.leader_epoch, answer.end_offset, now_ms)

    def on_diverging(self, state: PartitionState, epoch: int, end_offset: int, now_ms: int) -> None:
        """The leader's log diverges: its last common epoch `epoch` ends at `end_offset` (both −1 if unknown)."""
        position = state.position
        if position is None:
            return
        tp = state.tp
        known = epoch >= 0 and end_offset >= 0
        at = min(state.trail.divergence(epoch, end_offset), state.fetch_offset) if known else -1
        if at >= position:
            log.info("%s-%d was truncated to offset %d: the records that were fetched ahead are fetched again", *tp, at)
            self._fetcher.refetch(state)
        elif self._policy == "none":
            self._fetcher.refetch(state)
            state.truncated = True
            state.retry_later(now_ms, self._retry_backoff_ms, self._rng)
            self._fetcher.fail(state, LogTruncated(tp, position, at if known else None))
        elif known:
            log.warning(
                "%s-%d was truncated: records before the position %d were removed; going back to the first diverging offset %d",
                *tp,
                position,
                at,
            )
            before = state.trail.before(at)
            self._fetcher.seek(tp, at, epoch=before if before >= 0 or at < end_offset else epoch)
        else:
            log.warning(
                "%s-%d was truncated at an offset that the leader does not know: the position %d is reset to %r",
                *tp,
                position,
                self._policy,
            )
            self._fetcher.seek(tp, None, self._policy)

    def _awaits_metadata(self, state: PartitionState, node_id: int, now_ms: int) -> bool:
        """Requests newer metadata, with growing backoff. Returns False if none came for a minute."""
        state.asked = node_id  # the pause ends if another node is named
        if 0 <= state.failing_since_ms <= now_ms - OLD_METADATA_MS:
            return False
        self._fetcher.metadata_wanted = True
        state.retry_later(now_ms, self._retry_backoff_ms, self._rng)
        return True

    # -- internal --------------------------------------------------------------------------------------------------------

    def _request(self, node_id: int, states: list[PartitionState]) -> InFlightCheck:
        topics: dict[str, OffsetForLeaderTopic] = {}
        check = InFlightCheck(node_id, OffsetForLeaderEpochRequest(replica_id=-1), {})
        for state in states:
            tp = state.tp
            leader_epoch = self._metadata.leader_epochs.get(tp, -1)
            topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic)).partitions.append(
                OffsetForLeaderPartition(
                    partition=tp.partition, current_leader_epoch=leader_epoch, leader_epoch=state.trail.latest
                )
            )
            state.check = check
            state.asked = node_id
            check.asked[tp] = (state, leader_epoch)
        check.request.topics = list(topics.values())
        return check

    def _current(self, check: InFlightCheck) -> list[tuple[PartitionState, int]]:
        return [(state, leader_epoch) for state, leader_epoch in check.asked.values() if state.check is check]
