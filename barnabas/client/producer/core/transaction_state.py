"""Transaction states of a producer as a table, error codes by effect, values of the state machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from barnabas.client.errors import KafkaError
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode

# Errors that fence the producer; that require an abort; the same for offsets only.
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
ABORTABLE = frozenset(
    {ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
ABORTABLE_OFFSETS = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.INVALID_GROUP_ID,
    }
)


class TransactionPhase(Enum):
    """States of a producer. Idempotent ones use only UNINITIALIZED, INITIALIZING, READY and FATAL_ERROR."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_S = TransactionPhase

VALID_PREVIOUS: dict[TransactionPhase, frozenset[TransactionPhase]] = {
    _S.UNINITIALIZED: frozenset(),
    _S.INITIALIZING: frozenset({_S.UNINITIALIZED, _S.READY, _S.ABORTING}),  # from ABORTING and READY: for a new epoch
    _S.READY: frozenset({_S.INITIALIZING, _S.COMMITTING, _S.ABORTING}),
    _S.IN_TRANSACTION: frozenset({_S.READY}),
    _S.PREPARING: frozenset({_S.IN_TRANSACTION}),
    _S.PREPARED: frozenset({_S.PREPARING, _S.INITIALIZING}),  # from INITIALIZING: kept from an earlier producer
    _S.COMMITTING: frozenset({_S.IN_TRANSACTION, _S.PREPARED}),
    _S.ABORTING: frozenset({_S.IN_TRANSACTION, _S.PREPARING, _S.PREPARED, _S.ABORTABLE_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.IN_TRANSACTION, _S.PREPARING, _S.COMMITTING}),
    _S.FATAL_ERROR: frozenset(_S) - {_S.FATAL_ERROR},
}


class Step(Enum):
    """The request that a state waits for."""

    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


@dataclass(slots=True)
class OffsetsJob:
    """Offsets for the transaction; `done` or `error` is set at the end."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: ConsumerGroupMetadata
    added: bool = False  # the coordinator knows the group (TV1)
    done: bool = False
    error: KafkaError | None = None


@dataclass(slots=True)
class Outgoing:
    """A request to the transaction coordinator, a group coordinator, or any broker."""

    step: Step
    message: object
    coordinator: str  # "transaction", "group" or "" for any broker
    key: str
    version_max: int
    version_min: int = 0  # used even if the broker does not offer it
    partitions: list[TopicPartition] = field(default_factory=list)
    job: OffsetsJob | None = None
