"""Transaction requests of a producer, built from its identity. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from barnabas.client.producer.core.transaction_state import OffsetsJob, Outgoing, Step
from barnabas.client.types import OffsetAndMetadata, TopicPartition
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

_TIMEOUT_MS_MAX = 0x7FFFFFFF
_TWO_PHASE_VERSION = 6  # of InitProducerId; brokers support it without offering it in ApiVersions
_INIT_VERSION_MAX = 5

T = TypeVar("T")


class ProducerIdentity(NamedTuple):
    """The producer in a request. `producer_id` is −1 before the first InitProducerId."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int


def init_producer_id(identity: ProducerIdentity, *, timeout_ms: int, two_phase: bool, keep_prepared: bool) -> Outgoing:
    transactional = identity.transactional_id is not None
    bump = transactional and identity.producer_id >= 0
    hidden = _TWO_PHASE_VERSION if two_phase or keep_prepared else 0
    return Outgoing(
        Step.INIT_PRODUCER_ID,
        InitProducerIdRequest(
            transactional_id=identity.transactional_id,
            # An idempotent producer has no transactions to time out; Java sends the maximum.
            transaction_timeout_ms=timeout_ms if transactional else _TIMEOUT_MS_MAX,
            producer_id=identity.producer_id if bump else -1,
            producer_epoch=identity.producer_epoch if bump else -1,
            enable_2pc=two_phase,
            keep_prepared_txn=keep_prepared,
        ),
        "transaction" if transactional else "",
        identity.transactional_id or "",
        version_max=hidden or _INIT_VERSION_MAX,
        version_min=hidden,
    )


def add_partitions(identity: ProducerIdentity, partitions: list[TopicPartition]) -> Outgoing:
    """Needed by transaction protocol 1 before the first batch of a partition."""
    transactional_id = identity.transactional_id or ""
    message = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=numbers)
            for topic, numbers in _by_topic((tp, tp.partition) for tp in partitions)
        ],
    )
    return Outgoing(Step.ADD_PARTITIONS, message, "transaction", transactional_id, 3, partitions=partitions)


def add_offsets(identity: ProducerIdentity, job: OffsetsJob) -> Outgoing:
    """Needed by transaction protocol 1 before TxnOffsetCommit."""
    transactional_id = identity.transactional_id or ""
    message = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=job.group.group_id,
    )
    return Outgoing(Step.ADD_OFFSETS, message, "transaction", transactional_id, 4, job=job)


def txn_offset_commit(identity: ProducerIdentity, job: OffsetsJob, transaction_version: int) -> Outgoing:
    """With transaction protocol 2 the group's coordinator adds the group to the transaction."""
    message = TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id or "",
        group_id=job.group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=job.group.generation_id,
        member_id=job.group.member_id,
        group_instance_id=job.group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)
            for topic, partitions in _by_topic((tp, _commit_of(tp, at)) for tp, at in job.offsets.items())
        ],
    )
    version_max = 5 if transaction_version >= 2 else 4
    return Outgoing(Step.COMMIT_OFFSETS, message, "group", job.group.group_id, version_max, job=job)


def end_transaction(identity: ProducerIdentity, transaction_version: int, *, commit: bool) -> Outgoing:
    transactional_id = identity.transactional_id or ""
    message = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )
    return Outgoing(Step.END, message, "transaction", transactional_id, 5 if transaction_version >= 2 else 4)


def _by_topic(items: Iterable[tuple[TopicPartition, T]]) -> Iterable[tuple[str, list[T]]]:
    topics: dict[str, list[T]] = {}
    for tp, item in items:
        topics.setdefault(tp.topic, []).append(item)
    return topics.items()


def _commit_of(tp: TopicPartition, committed: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=tp.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )
