"""The client's errors: one tree under KafkaError, each saying whether to retry, to abort the transaction, or to give up.

Every error carries, where it is known, the broker's id, topic, partition and protocol code. `retriable` means that making
the same call again may succeed and that the client has already retried for as long as it was allowed to;
`txn_requires_abort` that the transaction can only be aborted, after which the producer goes on; `fatal` that the producer
can only be closed. An error of an answer is made by `error_for`, which picks the class by the code.
"""

from __future__ import annotations

import re

from barnabas.client.types import TopicPartition
from barnabas.errors import BarnabasError, ErrorCode
from barnabas.limits import TOPIC_NAME_LENGTH_MAX

__all__ = [
    "COORDINATOR_MOVED",
    "AuthorizationFailed",
    "BrokerUnreachable",
    "BufferExhausted",
    "ClientClosed",
    "CommitFailed",
    "CorruptRecords",
    "DeliveryTimedOut",
    "IllegalState",
    "InvalidTopic",
    "KafkaError",
    "LogTruncated",
    "NoOffsetForPartition",
    "NotKafka",
    "OffsetOutOfRange",
    "ProducerFailed",
    "ProducerFenced",
    "RecordTooLarge",
    "RequestTimedOut",
    "ResponseError",
    "SerializationFailed",
    "TopicAlreadyExists",
    "TransactionFailed",
    "UnknownGroup",
    "UnknownTopicOrPartition",
    "UnsupportedByBroker",
    "check_topic_name",
    "code_of",
    "error_for",
]


class KafkaError(BarnabasError):
    """Root of the client's errors.

    Attributes:
        code: the protocol's error code where a broker sent one, else None.
        broker: node id of the broker concerned, else None.
        topic: topic concerned, else None.
        partition: partition concerned, else None.
        retriable: the same call may succeed when made again.
        fatal: the producer (or consumer) that raised it can only be closed.
        txn_requires_abort: the transaction can only be aborted; the producer goes on after that.
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

    def __str__(self) -> str:
        where = [
            text
            for text, known in (
                (f"broker {self.broker}", self.broker is not None),
                (f"topic {self.topic!r}", self.topic is not None),
                (f"partition {self.partition}", self.partition is not None),
            )
            if known
        ]
        return f"{self.message} ({', '.join(where)})" if where else self.message


class IllegalState(KafkaError):
    """The call does not fit the state that the client is in; the text says what would."""


class ClientClosed(IllegalState):
    """The client was closed or never started."""


class BrokerUnreachable(KafkaError):
    """No connection could be made, or it was lost before the answer came."""

    retriable = True


class RequestTimedOut(KafkaError):
    """No answer within the time allowed. Whether the request took effect is unknown."""

    retriable = True


class NotKafka(KafkaError):
    """What listens at this address does not speak Kafka's protocol (or speaks TLS or SASL first)."""


class UnsupportedByBroker(KafkaError):
    """The broker offers no version of a request that this client can speak."""


class BufferExhausted(KafkaError):
    """`send` could not place the record within `max_block_ms`: no metadata of its topic, or `buffer_memory` stayed full."""

    retriable = True


class DeliveryTimedOut(KafkaError):
    """`delivery_timeout_ms` passed. The record may or may not have been written."""


class SerializationFailed(KafkaError):
    """A key or value serializer raised (see `__cause__`), or made something that is not bytes or None."""


class RecordTooLarge(KafkaError):
    """The record exceeds `max_request_size`, or the broker's `max.message.bytes`."""


class NoOffsetForPartition(KafkaError):
    """There is no committed offset and `auto_offset_reset` is "none"."""


class TransactionFailed(KafkaError):
    """The transaction cannot be committed (see `__cause__`); abort it and run it again."""

    txn_requires_abort = True


class ProducerFailed(KafkaError):
    """The producer met an error it cannot go on from (see `__cause__`); close it and make a new one."""

    fatal = True


class ResponseError(KafkaError):
    """A broker answered with an error code."""

    @property
    def retriable(self) -> bool:  # type: ignore[override]  # a class attribute in the root, decided by the code here
        return self.code is not None and self.code.retriable


class ProducerFenced(ResponseError):
    """Another producer with the same transactional id has taken over, or the coordinator gave this one up."""

    fatal = True


class OffsetOutOfRange(ResponseError):
    """The position lies outside the partition's log and `auto_offset_reset` is "none"."""


class LogTruncated(OffsetOutOfRange):
    """Records that this consumer has read are no longer in the partition's log, and `auto_offset_reset` is "none" (KIP-320).

    Attributes:
        position: the next offset to read.
        diverging_offset: the first offset where the log differs from what was read; None where the leader cannot tell.
    """

    def __init__(self, tp: TopicPartition, position: int, diverging_offset: int | None) -> None:
        self.position = position
        self.diverging_offset = diverging_offset
        seen = (
            f"from offset {diverging_offset} on" if diverging_offset is not None else "at an offset that is not known"
        )
        super().__init__(
            f"the log was truncated: it differs {seen} from what was read up to offset {position}; seek to go on",
            code=ErrorCode.OFFSET_OUT_OF_RANGE,
            topic=tp.topic,
            partition=tp.partition,
        )


class CorruptRecords(KafkaError):
    """Records cannot be read: their batch is damaged, or the broker says that it is (CORRUPT_MESSAGE).

    Attributes:
        offset: the next offset to read, in or before the damaged batch.
        next_offset: where to seek to in order to read on behind the batch, as far as can be seen; None where it cannot.
    """

    def __init__(self, tp: TopicPartition, offset: int, why: str, *, next_offset: int | None = None) -> None:
        self.offset = offset
        self.next_offset = next_offset
        to = "" if next_offset is None else f", to offset {next_offset}"
        super().__init__(
            f"the batch after offset {offset} cannot be read, seek past it to go on{to}: {why}",
            code=ErrorCode.CORRUPT_MESSAGE,
            topic=tp.topic,
            partition=tp.partition,
        )


class UnknownTopicOrPartition(ResponseError):
    """No such topic or partition on this cluster."""


class InvalidTopic(ResponseError):
    """Not a legal topic name."""


class TopicAlreadyExists(ResponseError):
    """A topic of this name exists."""


class UnknownGroup(ResponseError):
    """No such consumer group."""


class CommitFailed(ResponseError):
    """The group has rebalanced (or this member was removed): its partitions may be another's now."""


class AuthorizationFailed(ResponseError):
    """The broker does not allow this client to do that."""


# What a broker says that does not coordinate a group or transactional id, or not yet: to be looked up anew.
COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

_LEGAL_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")

_CLASSES: dict[ErrorCode, type[ResponseError]] = {
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
    ErrorCode.SASL_AUTHENTICATION_FAILED: AuthorizationFailed,
}


def check_topic_name(name: object) -> None:
    """Raises InvalidTopic for what no topic can be called, so that nobody waits for it."""
    if not isinstance(name, str):
        raise InvalidTopic(f"a topic is named by a str, not {name!r}")
    if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        text = f"{name!r} can be no topic: letters, digits, '.', '_' and '-', {TOPIC_NAME_LENGTH_MAX} at most"
        raise InvalidTopic(text, code=ErrorCode.INVALID_TOPIC_EXCEPTION)


def code_of(number: int) -> ErrorCode:
    """The code of an answer; one that this client does not know counts as UNKNOWN_SERVER_ERROR."""
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
    """The exception for an answer's error code: its class by the code, its text the code's name and the broker's words, or what
    the code means."""
    known = code_of(code)
    text = known.name if known == code else f"{known.name} (code {int(code)})"
    text = f"{text}: {message or known.meaning}"
    kind = _CLASSES.get(known, ResponseError)
    if known in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return RecordTooLarge(text, code=known, broker=broker, topic=topic, partition=partition)
    return kind(text, code=known, broker=broker, topic=topic, partition=partition)
