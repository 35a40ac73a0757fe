"""Records of __cluster_metadata against bytes that Kafka wrote."""

from __future__ import annotations

import pytest

from barnabas.broker.image.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FenceBrokerRecord,
    ForeignRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    decode_record,
    encode_record,
)
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.records import decode_records, iter_batches
from tests.support.broker.standalone import GOLDEN

TOPIC = bytes(range(16))


def kafka_values() -> list[bytes]:
    """Every value of Kafka's metadata log, control records left out."""
    data = (GOLDEN / "log.bin").read_bytes()
    return [
        record.value
        for position, header in iter_batches(data)
        if not header.is_control
        for record in decode_records(data, position, header)
        if record.value is not None
    ]


def test_every_record_that_kafka_wrote_is_written_again_byte_for_byte() -> None:
    values = kafka_values()
    decoded = [decode_record(value) for value in values]
    assert [encode_record(record) for record in decoded] == values
    assert {type(record).__name__ for record in decoded} >= {
        "BeginTransactionRecord",
        "BrokerRegistrationChangeRecord",
        "ClearElrRecord",
        "ConfigRecord",
        "EndTransactionRecord",
        "FeatureLevelRecord",
        "ClientQuotaRecord",
        "NoOpRecord",
        "PartitionChangeRecord",
        "PartitionRecord",
        "ProducerIdsRecord",
        "RegisterBrokerRecord",
        "RegisterControllerRecord",
        "RemoveTopicRecord",
        "TopicRecord",
        "UserScramCredentialRecord",
    }


def test_what_is_not_served_is_kept_as_bytes() -> None:
    assert not [record for record in map(decode_record, kafka_values()) if isinstance(record, ForeignRecord)]
    newer = bytes([1, 2, 9]) + b"whatever a later version says"
    assert decode_record(newer) == ForeignRecord(api_key=2, version=9, value=newer)
    assert encode_record(decode_record(newer)) == newer


@pytest.mark.parametrize(
    ("record", "encoded"),
    [
        (TopicRecord(name="t", topic_id=TOPIC), "01 02 00 02 74" + TOPIC.hex() + "00"),
        (ConfigRecord(resource_type=2, resource_name="t", name="k", value=None), "01 04 00 02 0274 026b 00 00"),
        (UnregisterBrokerRecord(broker_id=3, broker_epoch=9), "01 01 00 00000003 0000000000000009 00"),
        (FenceBrokerRecord(id=3, epoch=9), "01 07 00 00000003 0000000000000009 00"),
        (UnfenceBrokerRecord(id=3, epoch=9), "01 08 00 00000003 0000000000000009 00"),
        # A change that says nothing but the leader is one tagged field.
        (
            PartitionChangeRecord(partition_id=1, topic_id=TOPIC, leader=4),
            "01 05 02 00000001" + TOPIC.hex() + "01 01 04 00000004",
        ),
        (
            AccessControlEntryRecord(
                id=TOPIC,
                resource_type=2,
                resource_name="t",
                pattern_type=3,
                principal="User:a",
                host="*",
                operation=4,
                permission_type=3,
            ),
            "01 12 00" + TOPIC.hex() + "02 02 74 03 07 557365723a61 02 2a 04 03 00",
        ),
        (RemoveAccessControlEntryRecord(id=TOPIC), "01 13 00" + TOPIC.hex() + "00"),
        (RemoveUserScramCredentialRecord(name="a", mechanism=2), "01 16 00 0261 02 00"),
        (
            DelegationTokenRecord(owner="User:a", token_id="t", renewers=["User:b"], max_timestamp=1),
            "01 0a 00 07 557365723a61 01 02 07 557365723a62" + bytes(8).hex() + "0000000000000001" + bytes(8).hex() + "0274 00",
        ),
        (RemoveDelegationTokenRecord(token_id="t"), "01 1a 00 0274 00"),
        # The oldest version that can say it, as Kafka does.
        (
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, fenced=-1),
            "01 11 00 00000001 0000000000000002 01 00 01 ff",
        ),
        (
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, in_controlled_shutdown=1),
            "01 11 01 00000001 0000000000000002 01 01 01 01",
        ),
        (
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, cordoned_log_dirs=[]),
            "01 11 03 00000001 0000000000000002 01 03 01 01",
        ),
    ],
)  # fmt: skip
def test_layout(record: object, encoded: str) -> None:
    assert encode_record(record).hex() == encoded.replace(" ", "")  # type: ignore[arg-type]
    assert decode_record(bytes.fromhex(encoded.replace(" ", ""))) == record


def test_eligible_leaders_and_cordoned_directories_are_told_from_none() -> None:
    for eligible in (None, [], [1, 2]):
        partition = PartitionRecord(partition_id=0, topic_id=TOPIC, replicas=[1], eligible_leader_replicas=eligible)
        assert decode_record(encode_record(partition)) == partition
        broker = RegisterBrokerRecord(
            broker_id=1, cordoned_log_dirs=None if eligible is None else [TOPIC] * len(eligible)
        )
        assert decode_record(encode_record(broker)) == broker


@pytest.mark.parametrize("value", [b"", b"\x02\x02\x00", b"\x01", b"\x01\x02\x00\x05a", b"\x01\x03\x02" + bytes(10)])
def test_malformed_values_are_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_record(value)
