"""Client errors: one tree under KafkaError. Each says whether to retry, to abort the transaction, or to give up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from barnabas.client.types import TopicPartition
from barnabas.errors import BarnabasError, ErrorCode
from barnabas.limits import TOPIC_NAME_LENGTH_MAX


class KafkaError(BarnabasError):
    """Root of the client's errors.

    Attributes:
        code: the protocol error code from a broker, or None.
        broker: node id of the broker concerned, or None.
        topic: the topic concerned, or None.
        partition: the partition concerned, or None.
        retriable: the same call may succeed later; the client has already retried until its time-out.
        fatal: the producer (or consumer) that raised it must be closed.
        txn_requires_abort: the transaction must be aborted; the producer can continue after that.
    """

    retriable = False
    fatal = False
    txn_requires_abort = False

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        broker: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        self.message = message
        self.code = code
        self.broker = broker
        self.topic = topic
        self.partition = partition
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)  # subclasses have other parameters

    def __str__(self) -> str:
        # a bootstrap address has no id
        where = [
            text
            for text, known in (
                (
                    f"broker {self.broker}",
                    self.broker is not None and self.broker >= 0,
                ),
                (f"topic {self.topic!r}", self.topic is not None),
                (f"partition {self.partition}", self.partition is not None),
            )
            if known
        ]
        return f"{self.message} ({', '.join(where)})" if where else self.message


def _restored(kind: type[KafkaError], args: tuple[Any, ...], attributes: dict[str, Any]) -> KafkaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class IllegalState(KafkaError):
    """The call is not allowed in the present state, or a setting or argument is invalid."""


class ClientClosed(IllegalState):
    """The client was closed or never started.

    `maybe_written`: a record was in flight when the producer closed, so it may have been written.
    """

    maybe_written = False


class BrokerUnreachable(KafkaError):
    """No connection, or it was lost before the response."""

    retriable = True


class RequestTimedOut(KafkaError):
    """No response in time. Whether the request took effect is unknown."""

    retriable = True


class NotKafka(KafkaError):
    """The server at this address is no Kafka broker, or the listener uses TLS and this client does not."""


class AuthenticationFailed(KafkaError):
    """A broker rejected this client's login or certificate, or its own certificate is not trusted."""


class UnsupportedByBroker(KafkaError):
    """The broker and this client have no version of a request in common."""


class BufferExhausted(KafkaError):
    """`send` found no metadata of the topic, or no room in `buffer_memory`, within `max_block_ms`."""

    retriable = True


class DeliveryTimedOut(KafkaError):
    """`delivery_timeout_ms` passed. `maybe_written` is False if the record was certainly not written."""

    maybe_written = True


class SerializationFailed(KafkaError):
    """A key or value serializer raised (see `__cause__`), or its result is not bytes or None."""


class RecordTooLarge(KafkaError):
    """The record exceeds `max_request_size`, or the broker's `max.message.bytes`."""


class PartlyWritten(RecordTooLarge):
    """Some records of an encoded batch were not written, usually because they are too large for the topic.

    `failed` has the error of each such record, by its index in the batch. The other records are written.
    """

    def __init__(self, failed: dict[int, BaseException], count: int) -> None:
        place, first = next(iter(failed.items()))
        self.failed = failed
        super().__init__(f"{len(failed)} of {count} records are not written; the first is record {place}: {first}")


class NoOffsetForPartition(KafkaError):
    """No committed offset, and `auto_offset_reset` is "none"."""


class TransactionFailed(KafkaError):
    """The transaction cannot be committed (see `__cause__`); abort it and repeat it."""

    txn_requires_abort = True


class ProducerFailed(KafkaError):
    """The producer cannot continue after an error (see `__cause__`); close it and create a new one."""

    fatal = True


class SendFailed(KafkaError):
    """Records were not acknowledged, and their futures were not awaited. Raised once, by `flush` or `stop`.

    Its `code`, `broker`, `topic` and `partition` are those of the first error.

    Attributes:
        record_count: number of records; a batch of `send_batch` counts as one.
        errors: one for each failed batch, in order, at most 100.
    """

    def __init__(self, record_count: int, errors: Sequence[KafkaError]) -> None:
        self.record_count = record_count
        self.errors = tuple(errors)
        first = self.errors[0]
        records = "1 record was" if record_count == 1 else f"{record_count} records were"
        others = len(self.errors) - 1
        more = f" (and {others} other error{'s' if others > 1 else ''}: see `errors`)" if others else ""
        super().__init__(
            f"{records} not acknowledged: {first.message}{more}",
            code=first.code,
            broker=first.broker,
            topic=first.topic,
            partition=first.partition,
        )
        self.fatal = any(error.fatal for error in self.errors)


class ResponseError(KafkaError):
    """A broker answered with an error code."""

    @property
    def retriable(self) -> bool:  # type: ignore[override]  # a class attribute in the root, decided by the code here
        """Whether the same call may succeed later, by the error code."""
        return self.code is not None and self.code.retriable


class ProducerFenced(ResponseError):
    """A newer producer with the same transactional id exists, or the coordinator has fenced this one."""

    fatal = True


class OffsetOutOfRange(ResponseError):
    """The position is outside the partition's log and `auto_offset_reset` is "none"."""


class LogTruncated(OffsetOutOfRange):
    """Delivered records were removed from the log, and `auto_offset_reset` is "none" (KIP-320).

    Attributes:
        position: the next offset to read.
        diverging_offset: the first offset where the log differs from the delivered records; None if unknown.
    """

    def __init__(self, tp: TopicPartition, position: int, diverging_offset: int | None) -> None:
        self.position = position
        self.diverging_offset = diverging_offset
        seen = f"from offset {diverging_offset} on" if diverging_offset is not None else "at an unknown offset"
        super().__init__(
            f"the log was truncated: it differs {seen} from what was read up to offset {position}; seek to continue",
            code=ErrorCode.OFFSET_OUT_OF_RANGE,
            topic=tp.topic,
            partition=tp.partition,
        )


class CorruptRecords(KafkaError):
    """Unreadable records: their batch is damaged, also on the broker (CORRUPT_MESSAGE).

    Attributes:
        offset: the next offset to read, in or before the damaged batch.
        next_offset: where to seek to continue after the batch; None if unknown.
    """

    def __init__(self, tp: TopicPartition, offset: int, why: str, *, next_offset: int | None = None) -> None:
        self.offset = offset
        self.next_offset = next_offset
        to = "" if next_offset is None else f", to offset {next_offset}"
        super().__init__(
            f"the batch after offset {offset} cannot be read; seek past it to continue{to}: {why}",
            code=ErrorCode.CORRUPT_MESSAGE,
            topic=tp.topic,
            partition=tp.partition,
        )


class UnknownTopicOrPartition(ResponseError):
    """The cluster has no such topic or partition."""


class InvalidTopic(ResponseError):
    """The topic name is not valid."""


class TopicAlreadyExists(ResponseError):
    """A topic with this name exists already."""


class UnknownGroup(ResponseError):
    """The consumer group does not exist."""


class CommitFailed(ResponseError):
    """The group has rebalanced or removed this member: another member may own its partitions."""


class AuthorizationFailed(ResponseError):
    """The broker does not authorize this request."""


# Not the coordinator, or not yet: look it up again.
COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

_LEGAL_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")

_CLASSES: dict[ErrorCode, type[KafkaError]] = {
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: ProducerFenced,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartition,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicOrPartition,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExists,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroup,
    ErrorCode.ILLEGAL_GENERATION: CommitFailed,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitFailed,
    ErrorCode.REBALANCE_IN_PROGRESS: CommitFailed,
    ErrorCode.FENCED_INSTANCE_ID: CommitFailed,
    ErrorCode.STALE_MEMBER_EPOCH: CommitFailed,
    ErrorCode.FENCED_MEMBER_EPOCH: CommitFailed,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.SASL_AUTHENTICATION_FAILED: AuthenticationFailed,
}


def check_topic_name(name: object) -> None:
    """Raises InvalidTopic: a consumer would wait for such a topic forever."""
    if not isinstance(name, str):
        raise InvalidTopic(f"a topic name must be a str, not {name!r}")
    if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        text = (
            f"{name!r} is not a valid topic name: use up to {TOPIC_NAME_LENGTH_MAX} letters, digits, '.', '_' and '-'"
        )
        raise InvalidTopic(text, code=ErrorCode.INVALID_TOPIC_EXCEPTION)


def code_of(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def error_for(
    code: ErrorCode | int,
    message: str | None = None,
    *,
    broker: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> KafkaError:
    """The exception for an error code in a response. Its text has the broker's message or the meaning of the code."""
    known = code_of(code)
    text = known.name if known == code else f"{known.name} (code {int(code)})"
    text = f"{text}: {message or known.meaning}"
    kind = _CLASSES.get(known, ResponseError)
    if known in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return RecordTooLarge(text, code=known, broker=broker, topic=topic, partition=partition)
    return kind(text, code=known, broker=broker, topic=topic, partition=partition)
