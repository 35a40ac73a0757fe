"""Columns in Schema Registry's wire format, with the client's own registry in memory."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
pytest.importorskip("fastavro", reason="the extra `registry` is not installed")

import pyarrow as pa
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import SerializationError
from google.type.money_pb2 import Money
from pyspark.sql.pandas.types import to_arrow_type

from barnabas.pipeline import schema_registry
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.schema_registry import SchemaRegistry

NUMBERS = count()
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "first", "type": ["null", "Line"]},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
ORDER_TYPE = (
    "struct<id:bigint,at:timestamp,tags:map<string,int>,note:string,price:decimal(9,2),"
    "lines:array<struct<sku:string>>,first:struct<sku:string>,token:string>"
)
ROW: dict[str, Any] = {
    "id": 1,
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "tags": [("a", 1)],
    "note": None,
    "price": Decimal("1.25"),
    "lines": [{"sku": "x"}],
    "first": {"sku": "y"},
    "token": "c6f7cf4e-3c1a-4d6e-9c5b-0a1b2c3d4e5f",
}
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}
PERSON_TYPE = pa.struct([("id", pa.int64()), ("name", pa.string())])


class Registry:
    """A registry of its own."""

    def __init__(self) -> None:
        url = f"mock://{next(NUMBERS)}"
        self.public = SchemaRegistry(url)
        self.settings = (("url", url),)
        self.client = schema_registry._client(self.settings)

    def register(self, subject: str, schema: Any, format_name: str = "AVRO") -> int:
        return self.client.register_schema(subject, Schema(json.dumps(schema), format_name))

    def encode(self, rows: list[Any], kind: pa.DataType, message: Any = None, subject: str = "s") -> pa.Array:
        return schema_registry._encode(pa.array(rows, kind), self.settings, subject, message)

    def decode(self, values: list[bytes | None], kind: pa.DataType, message: Any = None) -> list[Any]:
        decoded = schema_registry._decode(pa.array(values, pa.binary()), self.settings, kind, message)
        return list(decoded.to_pylist())


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_avro_has_its_spark_type_and_comes_back_as_it_was(registry: Registry) -> None:
    registry.register("s", ORDER)
    found = registry.public.spark_schema("s")
    assert found.simpleString() == ORDER_TYPE
    kind = to_arrow_type(found, timezone="UTC")
    encoded = registry.encode([ROW, None], kind).to_pylist()
    assert encoded[0][:5] == b"\0\0\0\0\1"
    assert encoded[1] is None
    assert registry.decode(encoded, kind) == [{"value": ROW, "error": None}, {"value": None, "error": None}]


def test_bytes_that_cannot_be_decoded_say_why_and_leave_the_others(registry: Registry) -> None:
    registry.register("s", ORDER)
    kind = to_arrow_type(registry.public.spark_schema("s"), timezone="UTC")
    (good,) = registry.encode([ROW], kind).to_pylist()
    found = registry.decode([b"", b"{}", b"\0\0\0\0\x63a", good[:-5], good], kind)
    assert [each["value"] for each in found] == [None, None, None, None, ROW]
    assert [each["error"] for each in found[:3]] == [
        "the bytes do not begin with a zero and the number of a schema",
        "the bytes do not begin with a zero and the number of a schema",
        "the registry has no schema 99",
    ]
    assert found[3]["error"]


def test_values_that_do_not_have_the_given_type_say_so(registry: Registry) -> None:
    registry.register("s", ORDER)
    kind = to_arrow_type(registry.public.spark_schema("s"), timezone="UTC")
    encoded = registry.encode([ROW], kind).to_pylist()
    (found,) = registry.decode(encoded, pa.struct([("id", pa.string())]))
    assert found["value"] is None
    assert "Arrow" in found["error"]
    assert registry.decode(encoded, pa.struct([("id", pa.int64())])) == [{"value": {"id": 1}, "error": None}]


def test_json_is_checked_by_its_schema(registry: Registry) -> None:
    registry.register("s", PERSON, "JSON")
    encoded = registry.encode([{"id": 1, "name": None}, {"id": 2, "name": "ü"}], PERSON_TYPE).to_pylist()
    assert [json.loads(each[5:]) for each in encoded] == [{"id": 1}, {"id": 2, "name": "ü"}]
    found = registry.decode([*encoded, encoded[0][:5] + b'{"name": 1}'], PERSON_TYPE)
    assert [each["value"] for each in found] == [{"id": 1, "name": None}, {"id": 2, "name": "ü"}, None]
    assert "is a required property" in found[2]["error"] or "is not of type 'string'" in found[2]["error"]
    with pytest.raises(SerializationError, match="'id' is a required property"):
        registry.encode([{"id": None, "name": "x"}], PERSON_TYPE)


def test_protobuf_needs_the_class_of_the_message(registry: Registry) -> None:
    kind = pa.struct([("currency_code", pa.string()), ("units", pa.int64())])
    settings = {"use.deprecated.format": False, "subject.name.strategy": lambda *_: "s"}
    ProtobufSerializer(Money, registry.client, settings)(Money(), schema_registry._CONTEXT)  # registers its schema
    row = {"currency_code": "EUR", "units": 2**60}
    encoded = registry.encode([row], kind, Money).to_pylist()
    assert registry.decode(encoded, kind, Money) == [{"value": row, "error": None}]
    (found,) = registry.decode(encoded, kind)
    assert found["error"] == "schema 1 is in PROTOBUF: give decoded() a message_type"
    with pytest.raises(PipelineError, match="give encoded\\(\\) a message_type"):
        registry.encode([row], kind)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({**LINE, "fields": [{"name": "next", "type": ["null", "Line"]}]}, "contains itself"),
        ({**LINE, "fields": [{"name": "n", "type": ["int", "string"]}]}, "is a union"),
        ({"type": "array", "items": "int"}, "without fields"),
    ],
)
def test_avro_that_spark_cannot_hold_is_refused(registry: Registry, schema: Any, said: str) -> None:
    registry.register("s", schema)
    with pytest.raises(PipelineError, match=said):
        registry.public.spark_schema("s")


def test_a_subject_that_is_missing_or_not_in_avro_is_named(registry: Registry) -> None:
    registry.register("s", PERSON, "JSON")
    with pytest.raises(PipelineError, match="JSON, not in Avro: give decoded"):
        registry.public.spark_schema("s")
    with pytest.raises(PipelineError, match="'other' is not available"):
        registry.public.spark_schema("other")
    with pytest.raises(PipelineError, match="give decoded\\(\\) a schema or a subject"):
        registry.public.decoded("value")


def test_a_registry_that_does_not_answer_is_named() -> None:
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:1.*does not answer"):
        SchemaRegistry("http://127.0.0.1:1").spark_schema("s")
    with pytest.raises(Exception, match="onnection"):
        schema_registry._decode(pa.array([b"\0\0\0\0\1x"]), (("url", "http://127.0.0.1:1"),), PERSON_TYPE, None)


@pytest.mark.parametrize(
    ("url", "settings", "said"),
    [("http://127.0.0.1:1", {"colour": 1}, "Unrecognized properties: colour"), ("x:1", {}, "Invalid url x:1")],
)
def test_a_setting_that_the_client_refuses_is_named(url: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        SchemaRegistry(url, **settings)
