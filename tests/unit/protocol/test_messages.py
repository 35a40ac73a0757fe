"""Every served (message, version): generated codec = construct struct = kio, on random values.

kio is generated from Kafka's own schemas and so the independent judge. Its field names and types differ (timedelta, datetime,
UUID), so values are compared leaf by leaf in the order of the schema.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import re
import typing
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from barnabas.protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from barnabas.protocol.messages.internal import (
    EndTxnMarker,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from barnabas.protocol.registry import API
from barnabas.protocol.schema import (
    Struct,
    codec,
    decode,
    decode_beginning,
    decode_versioned,
    encode,
    encode_versioned,
)
from barnabas.protocol.wire import (
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    UInt16,
    Uuid,
    Wire,
    present,
    tagged,
)
from tests.support.construct_view import construct_of, plain
from tests.support.message_values import HEADERS, RECORDS, REQUESTS_AND_RESPONSES, messages, versions

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SHARED_WITH_CLIENTS = [
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    EndTxnMarker,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
]
property_test = settings(max_examples=12, suppress_health_check=list(HealthCheck))  # over all versions of a class


def assert_all_agree(cls: Any, version: int, msg: Any) -> bytes:
    """Encoders agree on the bytes, decoders on the values; returns the bytes."""
    data = encode(msg, version)
    assert decode(cls, data, version) == msg
    view = decode(cls, memoryview(bytearray(data)), version)
    assert view == msg
    assert encode(view, version) == data
    struct = construct_of(cls, version)
    assert struct.build(plain(msg, version)) == data
    assert struct.parse(data) == plain(msg, version)
    return data


def kio_class(cls: Any, version: int) -> Any:
    if cls.__name__.endswith("Request"):
        return load_request_schema(cls.API_KEY, version)
    if cls.__name__.endswith("Response"):
        return load_response_schema(cls.API_KEY, version)
    name = "k_raft_version_record" if cls is KRaftVersionRecord else snake(cls.__name__)
    return load_entity_schema(name, version, EntityType.header if cls in HEADERS else EntityType.data)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def leaves(value: Any, version: int) -> list[Any]:
    """Every value in the order of the schema; containers as their length."""
    if isinstance(value, Struct):
        fields = [f for f in value.FIELDS if f.in_version(version)]
        return [leaf for f in fields for leaf in leaves(getattr(value, f.name), version)]
    if dataclasses.is_dataclass(value):
        return [leaf for f in dataclasses.fields(value) for leaf in leaves(getattr(value, f.name), version)]
    if isinstance(value, (list, tuple)):
        return [("elements", len(value)), *(leaf for v in value for leaf in leaves(v, version))]
    if isinstance(value, datetime.timedelta):
        return [round(value.total_seconds() * 1000)]
    if isinstance(value, datetime.datetime):
        return [round((value - EPOCH) / datetime.timedelta(milliseconds=1))]  # kio goes through a float
    if isinstance(value, uuid.UUID):
        return [value.bytes]
    if isinstance(value, enum.Enum):
        return [value.value]
    return [value]


def assert_kio_agrees(cls: Any, version: int, msg: Any, data: bytes) -> None:
    foreign = kio_class(cls, version)
    theirs, size = entity_reader(foreign)(data, 0)
    assert size == len(data)
    ours = leaves(msg, version)
    # kio reads the nil uuid and the timestamp -1 as None
    seen = leaves(theirs, version)
    assert len(ours) == len(seen)
    for our, their in zip(ours, seen, strict=True):
        assert our == their or (their is None and our in (bytes(16), -1)), (our, their)
    out = io.BytesIO()
    entity_writer(foreign)(out, theirs)
    assert out.getvalue() == data


@pytest.mark.parametrize("cls", REQUESTS_AND_RESPONSES)
@property_test
@given(data=st.data())
def test_requests_and_responses_agree(cls: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(cls)))
    msg = data.draw(messages(cls, version))
    assert_kio_agrees(cls, version, msg, assert_all_agree(cls, version, msg))


@pytest.mark.parametrize("cls", REQUESTS_AND_RESPONSES)
def test_a_message_of_defaults_agrees(cls: Any) -> None:
    for version in versions(cls):
        assert_kio_agrees(cls, version, cls(), assert_all_agree(cls, version, cls()))


@pytest.mark.parametrize("cls", HEADERS)
@property_test
@given(data=st.data())
def test_headers_agree(cls: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(cls)))
    msg = data.draw(messages(cls, version))
    encoded = assert_all_agree(cls, version, msg)
    if (cls.__name__, version) != ("RequestHeader", 0):  # gone from Kafka with ControlledShutdown 0
        assert_kio_agrees(cls, version, msg, encoded)


@pytest.mark.parametrize("cls", SHARED_WITH_CLIENTS)
@property_test
@given(data=st.data())
def test_data_shared_with_clients_agrees(cls: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(cls)))
    msg = data.draw(messages(cls, version))
    assert_kio_agrees(cls, version, msg, assert_all_agree(cls, version, msg))


@pytest.mark.parametrize("cls", RECORDS)
@property_test
@given(data=st.data())
def test_records_of_internal_topics_agree(cls: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(cls)))
    msg = data.draw(messages(cls, version))
    body = assert_all_agree(cls, version, msg)
    prefixed = encode_versioned(msg, version)
    assert prefixed[2:] == body
    assert int.from_bytes(prefixed[:2]) == (version if cls.PREFIX is None else cls.PREFIX)
    assert decode_versioned(cls, prefixed) == msg


@pytest.mark.parametrize("cls", REQUESTS_AND_RESPONSES)
def test_a_codec_appends_and_finds_its_end(cls: Any) -> None:
    for version in versions(cls):
        both = codec(cls, version)
        out = bytearray(b"before")
        both.encode_into(out, cls())
        size = len(out)
        out += b"after"
        assert both.encode(cls()) == out[6:size]
        assert both.decode(out, 6) == (cls(), size)


KAFKA_TYPES = {
    "bool": Bool,
    "int8": Int8,
    "int16": Int16,
    "error_code": Int16,
    "uint16": UInt16,
    "int32": Int32,
    "timedelta_i32": Int32,
    "int64": Int64,
    "timedelta_i64": Int64,
    "datetime_i64": Int64,
    "float64": Float64,
    "uuid": Uuid,
    "string": String,
    "bytes": Bytes,
    "records": Records,
}
PRESENCE_IS_NOT_NULL = {"uuid", "datetime_i64"}  # kio shows the nil uuid and -1 as None


def bare(name: str) -> str:
    """A name without what kio writes otherwise: units, and where the words of KRaft and 2PC end."""
    return name.removesuffix("_ms").replace("_", "")


def assert_declared_alike(cls: Any, foreign: Any, version: int) -> None:
    """Same fields in the same order: names, wire types, tags, nullability and defaults."""
    ours = [f for f in cls.FIELDS if f.in_version(version)]
    theirs = dataclasses.fields(foreign)
    assert [bare(f.name) for f in ours] == [bare(f.name) for f in theirs]
    for our, their in zip(ours, theirs, strict=True):
        where = f"{cls.__name__}.{our.name}"
        kafka_type = their.metadata.get("kafka_type")
        assert (our.tag if our.is_tagged(version) else None) == their.metadata.get("tag"), where
        shown = [a for a in typing.get_args(their.type) if a is not type(None)]
        is_union = type(None) in typing.get_args(their.type)
        if kafka_type not in PRESENCE_IS_NOT_NULL or isinstance(our.wire, Array):
            assert our.nullable(version) == is_union, where
        kind = shown[0] if is_union else their.type
        if isinstance(our.wire, Array):
            kind = typing.get_args(kind)[0]
            element = our.wire.element
        else:
            element = our.wire
        if isinstance(element, type):
            assert_declared_alike(element, kind, version)
        else:
            assert element is KAFKA_TYPES[str(kafka_type)], where
        if their.default is not dataclasses.MISSING:
            default = getattr(cls(), our.name)
            assert leaves(default, version) == leaves(their.default, version) or (
                their.default is None and default in (-1, bytes(16))
            ), where


@pytest.mark.parametrize("cls", [*REQUESTS_AND_RESPONSES, *SHARED_WITH_CLIENTS])
def test_declarations_are_kafka_s(cls: Any) -> None:
    for version in versions(cls):
        assert_declared_alike(cls, kio_class(cls, version), version)


@pytest.mark.parametrize("cls", [api.request for api in API.values()])
@property_test
@given(data=st.data())
def test_the_beginning_of_a_request_has_its_first_elements(cls: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(cls)))
    msg = data.draw(messages(cls, version))
    whole = encode(msg, version)
    found = decode_beginning(cls, whole[: data.draw(st.integers(0, len(whole)))], version, 0)
    for each in present(cls, version):
        if isinstance(each.wire, Array):
            read, sent = getattr(found, each.name), getattr(msg, each.name)
            if read and isinstance(each.wire.element, Wire):
                assert read == sent[: len(read)]
            elif read:
                element: Any = each.wire.element
                first = present(element, version)[0].name
                assert [getattr(one, first) for one in read] == [getattr(one, first) for one in sent[: len(read)]]
    _drop_tags(msg, version)
    assert decode_beginning(cls, whole, version, 0) == msg


def _drop_tags(msg: Any, version: int) -> None:
    for each in type(msg).FIELDS:
        value = getattr(msg, each.name)
        if each in tagged(type(msg), version):
            setattr(msg, each.name, getattr(type(msg)(), each.name))
        else:
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Struct):
                    _drop_tags(one, version)
