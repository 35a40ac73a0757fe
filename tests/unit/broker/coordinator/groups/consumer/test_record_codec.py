"""Records of consumer groups against bytes that Kafka 4.3.1 wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.groups.consumer.member import (
    ClassicMemberMetadata,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
)
from barnabas.broker.coordinator.groups.record_codec import decode_record, encode_record
from barnabas.broker.coordinator.groups.records import ConsumerRecord, GroupEpoch, Kind, ResolvedRegex, TargetEpoch
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.messages.internal import ConsumerGroupTargetAssignmentMemberValue, TargetTopicPartitions
from barnabas.protocol.schema import encode_versioned

SUBSCRIPTION = bytes.fromhex("00010000000100027434ffffffff00000000")
TOPIC = bytes(range(16))

FROM_KAFKA = [
    (
        MemberMetadata("i1", None, "obs", "/127.0.0.1", ("t4",), "", 30_000),
        "000003693100046f62730b2f3132372e302e302e310203743401000075300001000100",
    ),
    (
        MemberMetadata(
            None,
            None,
            "c2",
            "/127.0.0.1",
            ("t4",),
            "",
            10_000,
            None,
            ClassicMemberMetadata(10_000, (("range", SUBSCRIPTION),)),
        ),
        "000000000363320b2f3132372e302e302e31020374340100002710000100210100002710020672616e6765"
        "1300010000000100027434ffffffff000000000000",
    ),
]


@pytest.mark.parametrize(("metadata", "written"), FROM_KAFKA, ids=["consumer", "classic"])
def test_member_metadata_is_kafkas_bytes(metadata: MemberMetadata, written: str) -> None:
    record = ConsumerRecord("g", Kind.MEMBER_METADATA, "m", metadata)
    key, value = encode_record(record)
    assert key == b"\0\5\0\1g\0\1m"
    assert value is not None
    assert value.hex() == written
    assert decode_record(key, value) == record


RECORDS = [
    ConsumerRecord("g", Kind.GROUP_EPOCH, "", GroupEpoch(3, -5)),
    ConsumerRecord("g", Kind.GROUP_EPOCH, "", GroupEpoch(3)),
    ConsumerRecord("g", Kind.TARGET_ASSIGNMENT_EPOCH, "", TargetEpoch(3, 1_700_000_000_000)),
    ConsumerRecord("g", Kind.TARGET_ASSIGNMENT, "m", {TOPIC: (0, 2)}),
    ConsumerRecord("g", Kind.TARGET_ASSIGNMENT, "m", {}),
    ConsumerRecord(
        "g",
        Kind.CURRENT_ASSIGNMENT,
        "m",
        CurrentAssignment(4, 3, MemberState.UNREVOKED_PARTITIONS, {TOPIC: {0: 2, 1: 4}}, {TOPIC: {5: 1}}),
    ),
    ConsumerRecord("g", Kind.REGEX, "t.*", ResolvedRegex(("t1", "t2"), 7, 1_700_000_000_000)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind.name)
def test_records_and_tombstones_come_back(record: ConsumerRecord) -> None:
    key, value = encode_record(record)
    assert decode_record(key, value) == record
    assert encode_record(record._replace(value=None)) == (key, None)
    assert decode_record(key, None) == record._replace(value=None)


def test_what_kafka_wrote_before_is_read_too() -> None:
    # Before 4.1 the group's topics stood in a record of their own; before 4.3 partitions had no epochs.
    assert decode_record(b"\0\4\0\1g", b"\0\0whatever") == ConsumerRecord("g", Kind.PARTITION_METADATA, "", None)
    assignment = bytes.fromhex("000000000004000000030002") + TOPIC + bytes.fromhex("0200000001000100")
    record = decode_record(b"\0\x08\0\1g\0\1m", assignment)
    assert record == ConsumerRecord(
        "g", Kind.CURRENT_ASSIGNMENT, "m", CurrentAssignment(4, 3, MemberState.STABLE, {TOPIC: {1: 4}}, {})
    )
    unknown = bytes.fromhex("0000000000040000000363010100")
    read = decode_record(b"\0\x08\0\1g\0\1m", unknown)
    assert isinstance(read, ConsumerRecord)
    assert read.value.state is MemberState.UNKNOWN


def test_garbage_is_refused() -> None:
    for key, value in ((b"\0\3\0\1g", b"\0\0\0"), (b"\0\5\0\1g\0\1m", b"\0\0\1"), (b"\0\x08\0\1g", b"")):
        with pytest.raises(RemoteProtocolError):
            decode_record(key, value)


def encoded_twice(target: dict[bytes, tuple[int, ...]]) -> tuple[bytes | None, bytes]:
    """The value of a target as it is written, and as the codec of its message makes it."""
    _, value = encode_record(ConsumerRecord("g", Kind.TARGET_ASSIGNMENT, "m", target))
    topics = [TargetTopicPartitions(topic_id=each, partitions=list(numbers)) for each, numbers in target.items()]
    return value, encode_versioned(ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics), 0)


@given(
    st.dictionaries(
        st.binary(min_size=16, max_size=16),
        st.one_of(
            st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
            st.integers(120, 300).map(lambda count: list(range(count))),
        ).map(tuple),
        max_size=4,
    )
)
def test_a_target_has_the_bytes_of_the_codec_of_its_message(target: dict[bytes, tuple[int, ...]]) -> None:
    written, of_codec = encoded_twice(target)
    assert written == of_codec


@pytest.mark.parametrize("topics", [126, 127, 128, 129, 300])
def test_a_target_of_many_topics_has_the_bytes_of_the_codec_of_its_message(topics: int) -> None:
    written, of_codec = encoded_twice({number.to_bytes(16, "big"): (number,) for number in range(topics)})
    assert written == of_codec
