"""Handles DeleteRecords, versions 0 to 2, of the family `admin`: raises the log start offset of partitions led here (KIP-107).

Behaviour: the leader's log start offset moves at once. The answer is sent once every in-sync replica has followed, so that no new
leader brings deleted records back, or with REQUEST_TIMED_OUT. Offset −1 means the high watermark.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.call import Call, Pending, Table
from barnabas.broker.replica.machine import Replica
from barnabas.broker.waiting import Timer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.reactor import Reactor
    from barnabas.broker.replica.replicas import Replicas

__all__ = ["HANDLERS", "Needs", "delete_records", "refuse_delete_records"]

NO_LOW_WATERMARK: Final = -1


class Needs(Protocol):
    """What these handlers work on."""

    reactor: Reactor
    replicas: Replicas


class _Deletion:
    """One request that waits for followers; it watches its replicas."""

    def __init__(self, needs: Needs, response: DeleteRecordsResponse) -> None:
        self.pending: Pending[DeleteRecordsResponse] = Pending()
        self._needs = needs
        self._response = response
        self._open: dict[Replica, list[tuple[int, DeleteRecordsPartitionResult]]] = {}  # with the offset to reach
        self._look_due = False
        self._timer: Timer | None = None

    def await_followers(self, replica: Replica, offset: int, result: DeleteRecordsPartitionResult) -> None:
        """The partition's answer is ready once its low watermark reaches `offset`."""
        self._open.setdefault(replica, []).append((offset, result))

    def begin(self, timeout_ms: int) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """Returns the answer, or a Pending for it."""
        self._look()
        if not self._open:
            return self._response
        self.pending.on_closed = self._on_closed
        self._timer = self._needs.reactor.call_later(timeout_ms, self._on_timeout)
        for replica in self._open:
            replica.watchers[self] = None
        return self.pending

    def on_progress(self, replica: Replica) -> None:
        """A replica moved: checks all at the end of the wake-up."""
        if not self._look_due:
            self._look_due = True
            self._needs.reactor.soon(self._look)

    def _look(self) -> None:
        self._look_due = False
        for replica, waiting in list(self._open.items()):
            if not replica.is_leader:
                code = ErrorCode.KAFKA_STORAGE_ERROR if replica.failed else ErrorCode.NOT_LEADER_OR_FOLLOWER
                for _, result in waiting:
                    result.error_code = code
                waiting.clear()
            low_watermark = replica.low_watermark
            for entry in list(waiting):
                if low_watermark >= entry[0]:
                    entry[1].low_watermark = low_watermark
                    waiting.remove(entry)
            if not waiting:
                del self._open[replica]
                replica.watchers.pop(self, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self.pending.resolve(self._response)

    def _on_timeout(self) -> None:
        for replica, waiting in self._open.items():
            for _, result in waiting:
                result.error_code, result.low_watermark = ErrorCode.REQUEST_TIMED_OUT, replica.low_watermark
        self._on_closed()
        self.pending.resolve(self._response)

    def _on_closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for replica in self._open:
            replica.watchers.pop(self, None)
        self._open.clear()


def delete_records(needs: Needs, call: Call[DeleteRecordsRequest]) -> Work:
    """Deletes the records below an offset."""
    response = DeleteRecordsResponse()
    deletion = _Deletion(needs, response)
    for topic in call.request.topics:
        results: list[DeleteRecordsPartitionResult] = []
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        for wanted in topic.partitions:
            yield 1
            result = _result(wanted.partition_index)
            results.append(result)
            try:
                replica = needs.replicas.leader(topic.name, wanted.partition_index)
                if not replica.log.config.deletes:
                    raise BrokerError(ErrorCode.POLICY_VIOLATION, f"{topic.name} has no cleanup.policy delete")
                log_start_offset = replica.delete_records_before(wanted.offset)
            except BrokerError as error:
                result.error_code = error.code
                continue
            # An offset below the present log start deletes nothing and waits for nothing.
            offset = log_start_offset if wanted.offset < 0 else min(wanted.offset, log_start_offset)
            deletion.await_followers(replica, offset, result)
    return deletion.begin(call.request.timeout_ms)


def _result(partition: int, code: ErrorCode = ErrorCode.NONE) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=NO_LOW_WATERMARK, error_code=code)


def refuse_delete_records(call: Call[DeleteRecordsRequest], error: BrokerError) -> DeleteRecordsResponse:
    """One error for every partition."""
    refused = partial(_result, code=error.code)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[refused(partition.partition_index) for partition in topic.partitions]
            )
            for topic in call.request.topics
        ]
    )


HANDLERS: Final[Table] = {DeleteRecordsRequest: (delete_records, refuse_delete_records)}
