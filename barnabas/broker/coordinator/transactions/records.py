"""Records of `__transaction_state`: Kafka's TransactionLogKey and TransactionLogValue.
Partitions are null in EMPTY and an empty list in later states. The last producer epoch and the monotonic start time are not in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from barnabas.broker.coordinator.transactions.state import TransactionMetadata, TransactionState
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.messages.internal import PartitionsSchema, TransactionLogKey, TransactionLogValue
from barnabas.protocol.schema import decode_versioned, encode_versioned

_KEY_TYPE = b"\x00\x00"  # prefix of TransactionLogKey, the only kind of key


class TransactionRecord(NamedTuple):
    """The state of a transactional id; None: a tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None


def encode_record(record: TransactionRecord, version: int) -> tuple[bytes, bytes | None]:
    """`version` of TransactionLogValue: 1 with transaction.version 1 (KIP-915), else 0."""
    key = encode_versioned(TransactionLogKey(transactional_id=record.transactional_id), 0)
    metadata = record.metadata
    if metadata is None:
        return key, None
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        next_producer_epoch=metadata.next_producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        transaction_partitions=None
        if metadata.state is TransactionState.EMPTY
        else [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()],
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.started_ms,
        client_transaction_version=metadata.client_transaction_version,
    )
    return key, encode_versioned(value, version)


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """None for unknown kinds of keys. Raises RemoteProtocolError for malformed bytes, or a state that is never written."""
    if key is None or key[:2] != _KEY_TYPE:
        return None
    transactional_id = decode_versioned(TransactionLogKey, key).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    decoded = decode_versioned(TransactionLogValue, value)
    if not 0 <= decoded.transaction_status <= TransactionState.COMPLETE_ABORT:
        raise RemoteProtocolError(f"{transactional_id}: a record with transaction state {decoded.transaction_status}")
    metadata = TransactionMetadata(
        transactional_id,
        decoded.producer_id,
        decoded.previous_producer_id,
        decoded.next_producer_id,
        decoded.producer_epoch,
        timeout_ms=decoded.transaction_timeout_ms,
        state=TransactionState(decoded.transaction_status),
        partitions=frozenset(
            (topic.topic, partition)
            for topic in decoded.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        started_ms=decoded.transaction_start_timestamp_ms,
        updated_ms=decoded.transaction_last_update_timestamp_ms,
        client_transaction_version=decoded.client_transaction_version,
        next_producer_epoch=decoded.next_producer_epoch,
    )
    return TransactionRecord(transactional_id, metadata)
