"""Handles DeleteRecords, versions 0 to 2, of the family `admin`: raises the log start offset of partitions led here (KIP-107).

Behaviour: the leader's log start offset moves at once. The answer is sent once every in-sync replica has followed, so that no new
leader brings deleted records back, or with REQUEST_TIMED_OUT. Offset −1 means the high watermark.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from barnabas.broker.api.call import Call, Pending, Table
from barnabas.broker.authorization.permissions import AllowedNames
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import INTERNAL_TOPICS
from barnabas.protocol.messages.admin import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from barnabas.work import Steps, Work

NO_LOW_WATERMARK: Final = -1
LOOKS_PER_TURN: Final = 512  # replicas that moved
LOOKS_PER_UNIT: Final = 16


class _Deletion:
    """One request that waits for followers; it watches its replicas."""

    def __init__(self, needs: Needs, response: DeleteRecordsResponse) -> None:
        self.pending: Pending[DeleteRecordsResponse] = Pending()
        self._needs = needs
        self._response = response
        self._open: dict[Replica, tuple[int, DeleteRecordsPartitionResult]] = {}  # with the offset to reach
        self._moved: dict[Replica, None] = {}  # not looked at since
        self._look_due = False
        self._timer: Timer | None = None

    def await_followers(self, replica: Replica, offset: int, result: DeleteRecordsPartitionResult) -> None:
        """The partition's answer is ready once its low watermark reaches `offset`: at once, or later."""
        if self._is_open(replica, offset, result):
            self._open[replica] = offset, result
            replica.watchers[self] = None

    def begin(self, timeout_ms: int) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """Returns the answer, or a Pending for it."""
        if not self._open:
            return self._response
        self.pending.on_closed = self._on_closed
        self._timer = self._needs.reactor.call_later(timeout_ms, self._on_timeout)
        return self.pending

    def cancel(self) -> None:
        """The request ended before all of its partitions were looked at."""
        if self._timer is None:
            self._on_closed()

    def on_progress(self, replica: Replica) -> None:
        """A replica moved: looks at it at the end of the wake-up."""
        self._moved[replica] = None
        if not self._look_due:
            self._look_due = True
            self._needs.reactor.soon(self._look)

    def _look(self) -> None:
        self._look_due = False
        for replica in list(islice(self._moved, LOOKS_PER_TURN)):
            del self._moved[replica]
            waiting = self._open.get(replica)
            if waiting is not None and not self._is_open(replica, *waiting):
                del self._open[replica]
                replica.watchers.pop(self, None)
        if self._moved:
            self._look_due = True
            self._needs.reactor.next_turn(self._look)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self.pending.resolve(self._response)

    @staticmethod
    def _is_open(replica: Replica, offset: int, result: DeleteRecordsPartitionResult) -> bool:
        """Answers for the partition if possible; else returns True."""
        if not replica.is_leader:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR if replica.failed else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return False
        low_watermark = replica.low_watermark
        if low_watermark < offset:
            return True
        result.low_watermark = low_watermark
        return False

    def _on_timeout(self) -> None:
        """Answers for what is still open, some replicas in each turn. It ends early if the connection closes."""
        for _ in range(min(len(self._open), LOOKS_PER_TURN)):
            replica, (_, result) = self._open.popitem()
            replica.watchers.pop(self, None)
            result.error_code, result.low_watermark = ErrorCode.REQUEST_TIMED_OUT, replica.low_watermark
        if self._open:
            self._needs.reactor.next_turn(self._on_timeout)
        else:
            self.pending.resolve(self._response)

    def _on_closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for replica in self._open:
            replica.watchers.pop(self, None)
        self._open.clear()
        self._moved.clear()


def delete_records(needs: Needs, call: Call[DeleteRecordsRequest]) -> Work:
    """Deletes the records below an offset."""
    response = DeleteRecordsResponse()
    deletion = _Deletion(needs, response)
    deletable = AllowedNames(call.access, AclOperation.DELETE, AclResourceType.TOPIC)
    try:
        for topic, offsets in (yield from _once(call.request)).items():
            results: list[DeleteRecordsPartitionResult] = []
            response.topics.append(DeleteRecordsTopicResult(name=topic, partitions=results))
            for partition, offset in offsets.items():
                result = _result(partition)
                results.append(result)
                if topic in deletable:
                    _delete(needs, topic, offset, result, deletion)
                else:
                    result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                yield 1 + needs.replicas.take_opened_units()
        return deletion.begin(call.request.timeout_ms)
    finally:
        deletion.cancel()


def _once(request: DeleteRecordsRequest) -> Steps[dict[str, dict[int, int]]]:
    """Returns the offset of each partition; as in Kafka, the last one counts of a partition that is named more than once."""
    found: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = found.setdefault(topic.name, {})
        for at, wanted in enumerate(topic.partitions):
            if at % LOOKS_PER_UNIT == 0:
                yield 1
            offsets[wanted.partition_index] = wanted.offset
    return found


def _delete(needs: Needs, topic: str, offset: int, result: DeleteRecordsPartitionResult, deletion: _Deletion) -> None:
    try:
        if topic in INTERNAL_TOPICS:
            absence = needs.replicas.absence(topic, result.partition_index)
            unknown = absence is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(absence if unknown else ErrorCode.INVALID_TOPIC_EXCEPTION)
        replica = needs.replicas.leader(topic, result.partition_index)
        if not replica.log.config.deletes:
            raise BrokerError(ErrorCode.POLICY_VIOLATION, f"{topic} has no cleanup.policy delete")
        log_start_offset = replica.delete_records_before(offset)
    except BrokerError as error:
        result.error_code = error.code
        return
    # An offset below the present log start deletes nothing and waits for nothing.
    deletion.await_followers(replica, log_start_offset if offset < 0 else min(offset, log_start_offset), result)


def _result(partition: int, code: ErrorCode = ErrorCode.NONE) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=NO_LOW_WATERMARK, error_code=code)


def refuse_delete_records(call: Call[DeleteRecordsRequest], error: BrokerError) -> DeleteRecordsResponse:
    """One error for every partition."""
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[_result(partition.partition_index, error.code) for partition in topic.partitions],
        )
        for topic in call.request.topics
    ]
    return DeleteRecordsResponse(topics=topics)


HANDLERS: Final[Table] = {DeleteRecordsRequest: (delete_records, refuse_delete_records)}
