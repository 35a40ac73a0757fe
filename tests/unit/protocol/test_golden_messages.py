"""Records of internal topics and tagged fields as Apache Kafka wrote them: read, understood, and written back byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from barnabas.protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from barnabas.protocol.messages.internal import (
    EndTxnMarker,
    GroupMetadataKey,
    GroupMetadataValue,
    LeaderChangeMessage,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    TransactionLogKey,
    TransactionLogValue,
    Voter,
)
from barnabas.protocol.messages.metadata import ApiVersionsResponse, FinalizedFeatureKey
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.record_codec import Record
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.protocol.registry import API
from barnabas.protocol.schema import decode, decode_versioned, encode, encode_versioned

GOLDEN = Path(__file__).parents[2] / "golden"


def records(path: str) -> tuple[list[Record], list[Record]]:
    """(data records, control records) of a segment or snapshot."""
    data = (GOLDEN / path).read_bytes()
    plain: list[Record] = []
    control: list[Record] = []
    for pos, header in iter_batches(data):
        (control if header.is_control else plain).extend(decode_records(data, pos, header))
    return plain, control


def there_and_back(cls: Any, data: bytes | None) -> Any:
    """The record, having checked that it encodes to the bytes it came from."""
    assert data is not None
    record = decode_versioned(cls, data)
    version = int.from_bytes(data[:2]) if cls.PREFIX is None else 0
    assert encode_versioned(record, version) == data
    return record


def test_transaction_states() -> None:
    plain, _ = records("internal/transaction-state.bin")
    keys = [there_and_back(TransactionLogKey, record.key) for record in plain]
    values = [there_and_back(TransactionLogValue, record.value) for record in plain]
    assert {key.transactional_id for key in keys} == {"land-surveyor"}
    assert [value.transaction_status for value in values] == [0, 1, 2, 4, 1, 1, 2, 4, 1, 3, 5]
    assert {record.value[:2] for record in plain if record.value} == {b"\0\1"}
    assert values[0].transaction_partitions is None
    assert values[1].transaction_partitions == [PartitionsSchema(topic="castle", partition_ids=[1, 0])]
    assert values[3].transaction_partitions == []
    assert all(value.previous_producer_id == value.producer_id == 0 for value in values)
    assert all(value.transaction_timeout_ms == 45_000 for value in values)


def test_groups_and_offsets() -> None:
    plain, control = records("internal/consumer-offsets.bin")
    groups = [record for record in plain if record.key and record.key[:2] == b"\0\2"]
    offsets = [record for record in plain if record.key and record.key[:2] == b"\0\1"]
    assert len(groups) + len(offsets) == len(plain)

    assert [there_and_back(GroupMetadataKey, record.key).group for record in groups] == ["village"] * 3
    empty, stable, left = [there_and_back(GroupMetadataValue, record.value) for record in groups]
    assert (empty.protocol, empty.generation, empty.members) == (None, 0, [])
    assert (stable.protocol, stable.protocol_type, stable.generation) == ("range", "consumer", 1)
    assert (left.protocol, left.generation) == (None, 2)
    (member,) = stable.members
    assert (member.group_instance_id, member.client_id, member.session_timeout) == ("klamm", "barnabas", 10_000)

    subscription = decode_versioned(ConsumerProtocolSubscription, member.subscription)
    assert subscription.topics == ["castle"]
    assert encode_versioned(subscription, 3) == member.subscription
    assignment = decode_versioned(ConsumerProtocolAssignment, member.assignment)
    assert assignment.assigned_partitions == [TopicPartitions(topic="castle", partitions=[0, 1])]
    assert encode_versioned(assignment, 0) == member.assignment

    keys = [there_and_back(OffsetCommitKey, record.key) for record in offsets]
    values = [there_and_back(OffsetCommitValue, record.value) for record in offsets]
    assert keys == [OffsetCommitKey(group="village", topic="castle", partition=p) for p in (0, 1)]
    assert [value.offset for value in values] == [1, 1]
    assert values[0].metadata.startswith("a note")
    assert values[0].topic_id != bytes(16)

    assert control[0].key == b"\0\0\0\1"
    assert there_and_back(EndTxnMarker, control[0].value) == EndTxnMarker(coordinator_epoch=0)


def test_control_records_of_raft_logs_have_no_prefix() -> None:
    _, (header, footer) = records("internal/snapshot.bin")
    assert header.value == encode(SnapshotHeaderRecord(last_contained_log_timestamp=0), 0)
    assert footer.value == encode(SnapshotFooterRecord(), 0)
    _, (change,) = records("records/leader-change.bin")
    assert change.value is not None
    message = decode(LeaderChangeMessage, change.value, 0)
    assert message.leader_id == 1
    assert message.voters == message.granting_voters == [Voter(voter_id=1)]
    assert encode(message, 0) == change.value


def test_tagged_fields_of_api_versions() -> None:
    data = (GOLDEN / "internal/api-versions-4.bin").read_bytes()
    response = decode(ApiVersionsResponse, data, 4)
    assert encode(response, 4) == data
    assert response.finalized_features_epoch == 15
    assert len(response.supported_features) == 7
    transactions = FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)
    assert transactions in response.finalized_features
    ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    served = {
        key: api.advertised
        for key, api in API.items()
        if "broker" in api.listeners and api.family != "telemetry"  # Kafka lists it only with a plugin that exports it
    }
    assert {key: ranges[key] for key in served} == served
