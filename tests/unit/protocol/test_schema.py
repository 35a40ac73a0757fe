"""The declaration engine: what a declared class can do, and what malformed bytes and unfit values come to."""

from __future__ import annotations

import copy
import struct as layout
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from barnabas.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from barnabas.limits import DECODED_ELEMENTS_MAX, EMPTY_LIST_ELEMENTS
from barnabas.protocol.encoding import BY_REFERENCE_BYTES_MIN
from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from barnabas.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from barnabas.protocol.messages.groups import HeartbeatRequest, OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.internal import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogValue,
)
from barnabas.protocol.messages.metadata import (
    ApiVersionsResponse,
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataResponse,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.protocol.primitives import encode_uvarint
from barnabas.protocol.schema import (
    Message,
    Struct,
    codec,
    decode,
    decode_versioned,
    encode,
    encode_parts,
    encode_versioned,
    field,
)
from barnabas.protocol.wire import Array, Float64, Int8, Int16, String, UInt16, UInt32, Uuid
from tests.support.message_values import HEADERS, RECORDS, REQUESTS_AND_RESPONSES, messages, versions

ALL = [*REQUESTS_AND_RESPONSES, *HEADERS, *RECORDS]
NO_TAGS = b"\0"
fuzz = settings(max_examples=10, suppress_health_check=list(HealthCheck))  # over all versions of a class


class Point(Struct):
    """Two numbers, the second since version 1."""

    x: int = field(Int16)
    y: int = field(UInt16, since=1)


class Sample(Message, api_key=9999, versions=(0, 2), flexible_since=2):
    """One field of each kind that Kafka's served messages lack, and of each way to lie on the wire."""

    ratio: float = field(Float64, default=0.5)
    count: int = field(UInt32)
    moved: int = field(Int8, default=7, tag=1, tag_since=2)
    origin: Point = field(Point)
    points: list[Point] = field(Array(Point), since=1)
    maybe: Point | None = field(Point, since=1, nullable_since=1, default=None)
    ids: list[bytes] = field(Array(Uuid), since=2, tag=0)
    label: str = field(String, until=1, default="unnamed")


# --- declared classes


def test_every_field_has_a_default_and_lists_are_not_shared() -> None:
    first, second = ProduceResponse(), ProduceResponse()
    assert first.responses == []
    assert first.throttle_time_ms == 0
    assert FetchRequest().replica_state.replica_id == -1
    first.responses.append(Any)  # type: ignore[arg-type]  # any object will do
    assert second.responses == []
    assert FetchRequest().replica_state is not FetchRequest().replica_state


def test_classes_have_slots_keywords_equality_and_a_readable_form() -> None:
    cursor = Cursor(topic_name="castle", partition_index=3)
    assert cursor == Cursor(partition_index=3, topic_name="castle")
    assert cursor != Cursor(topic_name="castle")
    assert cursor != ("castle", 3)
    assert repr(cursor) == "Cursor(topic_name='castle', partition_index=3)"
    assert copy.deepcopy(cursor) == cursor
    with pytest.raises(AttributeError):
        cursor.partition = 3  # type: ignore[attr-defined]  # the typo is the test
    with pytest.raises(TypeError, match="partition"):
        Cursor(partition=3)  # type: ignore[call-arg]  # the typo is the test
    with pytest.raises(TypeError):
        hash(cursor)


def test_the_declaration_is_readable_on_the_class() -> None:
    assert (ProduceRequest.API_KEY, ProduceRequest.VERSIONS, ProduceRequest.FLEXIBLE_SINCE) == (0, (3, 13), 9)
    assert [f.name for f in Cursor.FIELDS] == ["topic_name", "partition_index"]


def test_a_field_moves_nests_and_leaves_with_the_version() -> None:
    full = Sample(
        ratio=-2.0,
        count=2**32 - 1,
        moved=1,
        origin=Point(x=-1, y=65535),
        points=[Point(x=1, y=2)],
        maybe=Point(x=3, y=4),
        ids=[bytes(16), b"0123456789abcdef"],
        label="x",
    )
    head = layout.pack(">dI", -2.0, 2**32 - 1)
    assert encode(full, 0) == head + layout.pack(">bhh1s", 1, -1, 1, b"x")
    assert encode(full, 1) == head + layout.pack(">bhHihHbhHh1s", 1, -1, 65535, 1, 1, 2, 1, 3, 4, 1, b"x")
    assert encode(full, 2) == (
        head
        + layout.pack(">hHb", -1, 65535, 0)
        + layout.pack(">bhHb", 2, 1, 2, 0)
        + layout.pack(">bhHb", 1, 3, 4, 0)
        + bytes((2, 0, 33, 3))
        + bytes(16)
        + b"0123456789abcdef"
        + bytes((1, 1, 1))
    )
    for version in range(3):
        seen = decode(Sample, encode(full, version), version)
        assert encode(seen, version) == encode(full, version)
    assert decode(Sample, encode(full, 0), 0).points == []
    assert decode(Sample, encode(full, 2), 2).label == "unnamed"
    assert decode(Sample, encode(Sample(), 2), 2) == Sample()


def test_error_codes_encode_as_numbers() -> None:
    data = encode(MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED), 13)
    assert decode(MetadataResponse, data, 13).error_code == 129


def test_codecs_are_made_once() -> None:
    assert ProduceRequest._DECODERS[9] is ProduceRequest._DECODERS[9]  # type: ignore[attr-defined]  # the engine's own


# --- records: views in, references out


def fetched(records: bytes) -> FetchResponse:
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="t", topic_id=b"t" * 16, partitions=[PartitionData(records=records)])]
    )


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_decoded_records_are_a_view_of_the_buffer(version: int) -> None:
    buffer = bytearray(encode(fetched(b"r" * 10_000), version))
    records = decode(FetchResponse, memoryview(buffer), version).responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    buffer[buffer.index(b"rrr")] = ord("q")
    assert bytes(records[:2]) == b"qr"


@pytest.mark.parametrize("size", [0, 10])
def test_records_of_a_small_buffer_are_views_too(size: int) -> None:
    buffer = bytearray(encode(fetched(b"r" * size), 12))
    records = decode(FetchResponse, buffer, 12).responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records == b"r" * size


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("size", [BY_REFERENCE_BYTES_MIN - 2, BY_REFERENCE_BYTES_MIN, 100_000])
def test_long_records_are_passed_by_reference(version: int, size: int) -> None:
    records = memoryview(bytearray(size))
    msg = fetched(records)  # type: ignore[arg-type]  # any buffer
    msg.responses[0].partitions.append(PartitionData(records=b"short"))
    parts = encode_parts(msg, version, bytearray(b"head"))
    assert b"".join(parts) == b"head" + encode(msg, version)
    assert any(part is records for part in parts) == (size >= BY_REFERENCE_BYTES_MIN)
    assert len(parts) == (3 if size >= BY_REFERENCE_BYTES_MIN else 1)


# --- tagged fields


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = encode(MetadataRequest(topics=[]), 9)
    assert plain.endswith(NO_TAGS)
    unknown = b"\2" + b"\x05\x03abc" + encode_uvarint(70_000) + encode_uvarint(200) + bytes(200)
    assert decode(MetadataRequest, plain[:-1] + unknown, 9) == MetadataRequest(topics=[])


def test_unknown_tagged_fields_stand_beside_known_ones() -> None:
    known = ApiVersionsResponse(finalized_features_epoch=42, zk_migration_ready=True)
    data = encode(known, 4)
    tags = data.index(b"\2\1\x08")
    mixed = data[:tags] + b"\4" + data[tags + 1 : -3] + b"\x02\x01\x01" + data[-3:] + b"\x63\x01z"
    assert decode(ApiVersionsResponse, mixed, 4) == known


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param(b"\1\1\x07" + bytes(7), id="shorter than its value"),
        pytest.param(b"\1\1\x09" + bytes(9), id="longer than its value"),
        pytest.param(b"\1\x63\x09" + bytes(8), id="cut off"),
        pytest.param(b"\1\1\x08" + bytes(7), id="cut off, known"),
        pytest.param(b"\1\x63\xff\xff\xff\xff\x0f", id="hostile length"),
        pytest.param(b"\xff\xff\xff\xff\x0f", id="hostile count"),
        pytest.param(b"\1\xff\xff\xff\xff\xff\x01\0", id="endless tag"),
        pytest.param(b"\2\x63\0", id="fewer than said"),
    ],
)
def test_malformed_tagged_fields_are_refused(tags: bytes) -> None:
    data = encode(ApiVersionsResponse(), 4)[:-1]
    with pytest.raises(RemoteProtocolError):
        decode(ApiVersionsResponse, data + tags, 4)
    if tags[1] != 1:  # nor where no tag at all is known
        with pytest.raises(RemoteProtocolError):
            decode(MetadataRequest, encode(MetadataRequest(), 9)[:-1] + tags, 9)


# --- malformed bytes


@pytest.mark.parametrize("cls", ALL)
@fuzz
@given(data=st.data())
def test_a_message_cut_off_anywhere_is_refused(cls: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(cls)))
    whole = encode(data.draw(messages(cls, version)), version)
    if not whole:
        return
    size = data.draw(st.integers(0, len(whole) - 1))
    for cut in {size, len(whole) - 1, len(whole) // 2, 0}:
        with pytest.raises(RemoteProtocolError):
            decode(cls, whole[:cut], version)
        with pytest.raises(RemoteProtocolError):
            decode(cls, memoryview(whole)[:cut], version)


@pytest.mark.parametrize("cls", ALL)
@fuzz
@given(data=st.data())
def test_altered_and_random_bytes_decode_or_are_refused(cls: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(cls)))
    altered = bytearray(encode(data.draw(messages(cls, version)), version))
    for _ in range(3 if altered else 0):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.sampled_from([0, 1, 127, 128, 254, 255]))
    for buffer in (bytes(altered), data.draw(st.binary(max_size=60)), b"\xff" * 60, b"\x7f" * 60, b"\0" * 60):
        try:
            msg = decode(cls, buffer, version)
        except RemoteProtocolError:
            continue
        assert decode(cls, encode(msg, version), version) == msg


@given(st.binary(max_size=200))
@example(b"")
@example(b"\0")
def test_random_bytes_with_a_prefix_decode_or_are_refused(data: bytes) -> None:
    for cls in RECORDS:
        try:
            decode_versioned(cls, data)
        except RemoteProtocolError:
            pass


HOSTILE = [
    pytest.param(MetadataRequest, 1, layout.pack(">i", 2**31 - 1), id="count"),
    pytest.param(MetadataRequest, 9, b"\xff\xff\xff\xff\x0f", id="compact count"),
    pytest.param(MetadataRequest, 9, b"\xff\xff\xff\xff\x1f", id="compact count beyond 32 bits"),
    pytest.param(MetadataRequest, 9, b"\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="endless compact count"),
    pytest.param(MetadataRequest, 0, layout.pack(">i", -1), id="null where not allowed"),
    pytest.param(MetadataResponse, 9, b"\0\0\0\0" + b"\0", id="compact null where not allowed"),
    pytest.param(MetadataRequest, 0, layout.pack(">ih", 1, -1), id="null string"),
    pytest.param(MetadataRequest, 0, layout.pack(">ih", 1, 32767) + b"short", id="string"),
    pytest.param(MetadataRequest, 9, b"\2\xff\xff\xff\xff\x0f", id="compact string"),
    pytest.param(MetadataRequest, 0, layout.pack(">ih2s", 1, 2, b"\xc3\x28"), id="no utf-8"),
    pytest.param(ProduceRequest, 3, layout.pack(">hhi", -1, 1, 1) + layout.pack(">ih1sii", 1, 1, b"t", 1, 0) + layout.pack(">i", 2**31 - 1), id="records"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "version", "head"), HOSTILE)
@pytest.mark.parametrize("padding", [0, 100, 20_000])
def test_hostile_lengths_are_refused_before_anything_is_allocated(
    cls: Any, version: int, head: bytes, padding: int
) -> None:
    buffer = head + bytes(padding)
    decode(cls, encode(cls(), version), version)  # generated outside the measurement
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=cls.__name__ + "|varint"):
            decode(cls, buffer, version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000 + 4 * padding


def test_elements_are_limited_over_the_whole_message() -> None:
    topic = layout.pack(">h1s", 1, b"t")
    at_limit = layout.pack(">i", DECODED_ELEMENTS_MAX) + topic * DECODED_ELEMENTS_MAX
    assert len(decode(MetadataRequest, at_limit, 1).topics or ()) == DECODED_ELEMENTS_MAX
    above = layout.pack(">i", DECODED_ELEMENTS_MAX + 1) + topic * (DECODED_ELEMENTS_MAX + 1)
    with pytest.raises(RemoteProtocolError, match="at most 100000"):
        decode(MetadataRequest, above, 1)
    partitions = layout.pack(">h1si", 1, b"t", 30_000) + layout.pack(">ii", 0, -1) * 30_000
    nested = layout.pack(">hhii", -1, 1, 1, 4) + partitions * 4
    with pytest.raises(RemoteProtocolError, match="at most 100000"):
        decode(ProduceRequest, nested, 3)


def test_a_topic_without_partitions_counts_as_several_elements() -> None:
    most = DECODED_ELEMENTS_MAX // (1 + EMPTY_LIST_ELEMENTS)

    def topics(count: int) -> bytes:
        return encode(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[])] * count), 2)

    def groups(count: int) -> bytes:
        return encode(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[])] * count), 9)

    assert len(decode(DeleteRecordsRequest, topics(most), 2).topics) == most
    assert len(decode(OffsetFetchRequest, groups(most), 9).groups) == most
    with pytest.raises(RemoteProtocolError, match="at most 100000"):
        decode(DeleteRecordsRequest, topics(most + 1), 2)
    with pytest.raises(RemoteProtocolError, match="at most 100000"):
        decode(OffsetFetchRequest, groups(most + 1), 9)


def test_empty_lists_of_other_things_and_of_answers_count_nothing() -> None:
    """A client creates 10,000 topics without configurations, and sends null for all topics of a group."""
    creation = CreateTopicsRequest(topics=[CreatableTopic(name="t", assignments=[], configs=[])] * 10_000)
    assert len(decode(CreateTopicsRequest, encode(creation, 7), 7).topics) == 10_000
    groups = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)] * 10_000)
    assert len(decode(OffsetFetchRequest, encode(groups, 9), 9).groups) == 10_000
    answer = DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=[])] * 10_000)
    assert len(decode(DeleteRecordsResponse, encode(answer, 2), 2).topics) == 10_000


def test_tags_count_as_elements() -> None:
    head = encode(MetadataRequest(topics=[]), 9)[:-1]
    unknown = encode_uvarint(DECODED_ELEMENTS_MAX + 1) + b"\x63\0" * (DECODED_ELEMENTS_MAX + 1)
    with pytest.raises(RemoteProtocolError, match="100001 tagged fields"):
        decode(MetadataRequest, head + unknown, 9)
    with pytest.raises(RemoteProtocolError, match="tagged fields"):
        decode(ApiVersionsResponse, encode(ApiVersionsResponse(), 4)[:-1] + unknown, 4)


def test_bytes_behind_a_message_are_left_alone() -> None:
    msg, end = codec(MetadataRequest, 1).decode(encode(MetadataRequest(topics=None), 1) + b"more", 0)
    assert msg.topics is None
    assert end == 4


# --- unfit values and versions


@pytest.mark.parametrize(
    ("msg", "version"),
    [
        pytest.param(ProduceRequest(acks=2**15), 9, id="int16 out of range"),
        pytest.param(ProduceRequest(topic_data=None), 9, id="null array"),  # type: ignore[arg-type]
        pytest.param(ProduceRequest(topic_data=[TopicProduceData(name=None)]), 9, id="null string"),  # type: ignore[arg-type]
        pytest.param(ProduceRequest(topic_data=[TopicProduceData(name=7)]), 9, id="wrong type"),  # type: ignore[arg-type]
        pytest.param(ProduceRequest(topic_data=[TopicProduceData(name="x" * 2**15)]), 3, id="string too long"),
        pytest.param(ProduceRequest(topic_data=[TopicProduceData(topic_id=b"short")]), 13, id="uuid too short"),
        pytest.param(ProduceRequest(topic_data=[TopicProduceData(name="\ud800")]), 9, id="lone surrogate"),
        pytest.param(DescribeTopicPartitionsRequest(cursor=7), 0, id="no struct"),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_fit_are_our_own_error(msg: Any, version: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"{type(msg).__name__} version {version}"):
        encode(msg, version)
    with pytest.raises(LocalProtocolError):
        encode_parts(msg, version)


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_versions_that_are_not_declared_are_our_own_error(version: int) -> None:
    for attempt in (
        lambda: decode(ProduceRequest, b"", version),
        lambda: encode(ProduceRequest(), version),
        lambda: encode_parts(ProduceRequest(), version),
        lambda: codec(ProduceRequest, version),
    ):
        with pytest.raises(LocalProtocolError, match="has versions 3-13"):
            attempt()


def test_records_of_another_type_or_version_are_refused() -> None:
    key = encode_versioned(OffsetCommitKey(group="g", topic="t", partition=1), 0)
    assert key[:2] == b"\0\1"
    with pytest.raises(RemoteProtocolError, match="record type 1 instead of 2"):
        decode_versioned(GroupMetadataKey, key)
    with pytest.raises(RemoteProtocolError, match="version 9 is not one of 0-4"):
        decode_versioned(OffsetCommitValue, b"\0\x09" + bytes(30))
    with pytest.raises(RemoteProtocolError, match="version -1"):
        decode_versioned(TransactionLogValue, b"\xff\xff" + bytes(30))
    with pytest.raises(RemoteProtocolError, match="too short"):
        decode_versioned(TransactionLogValue, b"\0")


# --- bytes written out by hand


def test_request_header_by_hand() -> None:
    fields = layout.pack(">hhi", 18, 4, 7)
    header = RequestHeader(request_api_key=18, request_api_version=4, correlation_id=7, client_id="me")
    assert encode(header, 0) == fields
    assert encode(header, 1) == fields + b"\0\2me"
    assert encode(header, 2) == fields + b"\0\2me\0"
    assert decode(RequestHeader, fields + b"\xff\xff", 1).client_id is None


def test_produce_by_hand() -> None:
    msg = ProduceRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="k", partition_data=[PartitionProduceData(index=3, records=b"abc")])],
    )
    assert encode(msg, 3) == (
        b"\0\2tx"
        + layout.pack(">hi", -1, 1000)
        + b"\0\0\0\1"
        + b"\0\1k"
        + b"\0\0\0\1"
        + layout.pack(">ii", 3, 3)
        + b"abc"
    )
    assert encode(msg, 9) == (
        b"\3tx" + layout.pack(">hi", -1, 1000) + b"\2" + b"\2k" + b"\2" + layout.pack(">ib", 3, 4) + b"abc" + bytes(3)
    )


def test_strings_end_at_32767_bytes_in_flexible_versions_too() -> None:
    longest = "g" * 32_767
    request = HeartbeatRequest(group_id=longest)
    assert decode(HeartbeatRequest, encode(request, 4), 4).group_id == longest
    with pytest.raises(RemoteProtocolError, match="group_id of 32768 bytes"):
        decode(HeartbeatRequest, encode(HeartbeatRequest(group_id=longest + "g"), 4), 4)
