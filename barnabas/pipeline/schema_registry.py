"""Values in Schema Registry's wire format as columns of Spark: a zero byte, the number of a schema, the encoded data.

The client, and the formats Avro, JSON Schema and Protobuf, are those of confluent-kafka.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from barnabas.pipeline.errors import PipelineError

try:
    from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from google.protobuf import json_format
except ModuleNotFoundError as missing:
    raise PipelineError(
        "barnabas[registry]", None, "install it by: pip install 'barnabas[registry]'", f"lacks {missing.name}"
    ) from missing

if TYPE_CHECKING:
    from pyspark.sql import Column

_PREFIX: Final = Struct(">bI")
_NOT_FOUND: Final = 404
_ERROR_CHARACTERS_MAX: Final = 500
_CONTEXT: Final = SerializationContext("", MessageField.VALUE)
_AVRO_TYPES: Final[dict[str, type[T.DataType]]] = {
    "boolean": T.BooleanType,
    "int": T.IntegerType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "bytes": T.BinaryType,
    "fixed": T.BinaryType,
    "string": T.StringType,
    "enum": T.StringType,
    "date": T.DateType,
    "timestamp-millis": T.TimestampType,
    "timestamp-micros": T.TimestampType,
    "local-timestamp-millis": T.TimestampNTZType,
    "local-timestamp-micros": T.TimestampNTZType,
}


class SchemaRegistry:
    """A Schema Registry, or another server with its API, whose schemas decode and encode columns.

    Args:
        url: of the registry.
        settings: more of confluent_kafka's SchemaRegistryClient, with underscores for dots: `basic_auth_user_info`,
            `ssl_ca_location`, …

    Raises:
        PipelineError: the client refuses a setting.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self._settings = (("url", url), *((name.replace("_", "."), value) for name, value in settings.items()))
        try:
            _client(self._settings)
        except (ValueError, TypeError, AttributeError) as error:
            remedy = "see the settings of confluent_kafka's SchemaRegistryClient"
            raise PipelineError("SchemaRegistry", url, remedy, f"cannot be used ({error})") from error

    def spark_schema(self, subject: str) -> T.StructType:
        """The Spark type of the latest version of a subject in Avro.

        Raises:
            PipelineError: the registry does not have the subject or cannot be reached; its schema has another format,
                or a type that Spark lacks.
        """
        latest = _latest(self._settings, subject)
        if latest.schema.schema_type != "AVRO":
            remedy = "give decoded() the type of its rows, such as 'id BIGINT, total DOUBLE'"
            raise PipelineError("subject", subject, remedy, f"has a schema in {latest.schema.schema_type}, not in Avro")
        named: dict[str, T.DataType] = {}
        for reference in latest.schema.references or ():
            version = _client(self._settings).get_version(reference.subject, reference.version)
            _spark_type(json.loads(version.schema.schema_str or "null"), named)
        found = _spark_type(json.loads(latest.schema.schema_str), named)
        if not isinstance(found, T.StructType):
            raise PipelineError(
                "subject", subject, "give decoded() the type of its rows", "has a schema without fields"
            )
        return found

    def decoded(
        self, column: Column | str, schema: T.StructType | str = "", *, subject: str = "", message_type: Any = None
    ) -> Column:
        """A column of structs: `value`, null if the bytes are null or cannot be decoded, and `error`, null or why not.

        Args:
            column: bytes.
            schema: of the values, as a Spark type or its text; by default that of `subject`.
            message_type: the class of a Protobuf message, in a module that Spark's workers can import.

        Raises:
            PipelineError: as `spark_schema`. A task fails when the registry cannot be reached.
        """
        if not schema and not subject:
            raise PipelineError("schema", None, "give decoded() a schema or a subject", "is missing")
        if not schema:
            schema = self.spark_schema(subject)
        kind = T._parse_datatype_string(schema) if isinstance(schema, str) else schema
        settings, arrow_kind = self._settings, to_arrow_type(kind, timezone="UTC")

        def decode(data: pa.Array) -> pa.Array:
            return _decode(data, settings, arrow_kind, message_type)

        result = T.StructType([T.StructField("value", kind), T.StructField("error", T.StringType())])
        return _udf(decode, result)(column)

    def encoded(self, column: Column | str, subject: str, *, message_type: Any = None) -> Column:
        """A column of bytes: structs by the latest schema of a subject, in Protobuf by that of `message_type`. Null stays null.

        Raises:
            PipelineError: the registry does not have the subject or cannot be reached. A task fails at a row that the
                schema does not allow.
        """
        _latest(self._settings, subject)
        settings = self._settings

        def encode(rows: pa.Array) -> pa.Array:
            return _encode(rows, settings, subject, message_type)

        return _udf(encode, T.BinaryType())(column)


def _udf(function: Callable[[pa.Array], pa.Array], kind: T.DataType) -> Callable[..., Column]:
    made: Callable[..., Column]
    made = F.arrow_udf(function, kind)  # type: ignore[call-overload]  # Spark warns of the argument that its stubs demand
    return made


@cache
def _client(settings: tuple[tuple[str, Any], ...]) -> SchemaRegistryClient:
    """One a process: it keeps the schemas that it has read."""
    return SchemaRegistryClient.new_client(dict(settings))


def _latest(settings: tuple[tuple[str, Any], ...], subject: str) -> Any:
    try:
        return _client(settings).get_latest_version(subject)
    except SchemaRegistryError as error:
        remedy = "register a schema, or correct the subject" if _says_not_found(error) else "check the registry"
        raise PipelineError("subject", subject, remedy, f"is not available ({error})") from error
    except Exception as error:  # the client's HTTP library has its own errors
        raise PipelineError("url", dict(settings)["url"], "check the registry", f"does not answer ({error})") from error


def _says_not_found(error: SchemaRegistryError) -> bool:
    return bool(error.http_status_code == _NOT_FOUND)


# -- decoding


def _decode(data: pa.Array, settings: tuple[tuple[str, Any], ...], kind: pa.DataType, message_type: Any) -> pa.Array:
    values: list[Any] = []
    errors: list[str | None] = []
    for each in data.to_pylist():
        value, error = None, None
        reader = None if each is None else _reader(each, settings, message_type)
        if isinstance(reader, str):
            error = reader
        elif reader is not None:
            try:
                value = pa.scalar(_for_arrow(reader(each, _CONTEXT), kind), kind)
            except Exception as failure:  # what a codec raises for hostile bytes is not declared
                error = f"{type(failure).__name__}: {failure}"[:_ERROR_CHARACTERS_MAX]
        values.append(value)
        errors.append(error)
    return pa.StructArray.from_arrays([pa.array(values, kind), pa.array(errors, pa.string())], ["value", "error"])


def _reader(data: bytes, settings: tuple[tuple[str, Any], ...], message_type: Any) -> Callable[..., Any] | str:
    """The decoder of one value, or why it has none. Raises if the registry does not answer."""
    if len(data) < _PREFIX.size or data[0]:
        return "the bytes do not begin with a zero and the number of a schema"
    number = _PREFIX.unpack_from(data)[1]
    try:
        return _reader_of(number, settings, message_type)
    except SchemaRegistryError as error:
        if _says_not_found(error):
            return f"the registry has no schema {number}"
        raise


@cache
def _reader_of(number: int, settings: tuple[tuple[str, Any], ...], message_type: Any) -> Callable[..., Any] | str:
    client = _client(settings)
    format_name = client.get_schema(number).schema_type
    reader: Callable[..., Any]
    if format_name == "AVRO":
        reader = AvroDeserializer(client)
    elif format_name == "JSON":
        reader = JSONDeserializer(None, schema_registry_client=client)
    elif message_type is None:
        return f"schema {number} is in {format_name}: give decoded() a message_type"
    else:
        reader = ProtobufDeserializer(message_type, {"use.deprecated.format": False})
    return reader


def _for_arrow(value: Any, kind: pa.DataType) -> Any:
    """A decoded value in the form that Arrow takes for its type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if hasattr(value, "DESCRIPTOR"):  # a Protobuf message
            present = {field.name for field, _ in value.ListFields()}
            value = {
                field.name: getattr(value, field.name)
                for field in value.DESCRIPTOR.fields
                if not field.has_presence or field.name in present
            }
        return {field.name: _for_arrow(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(key, _for_arrow(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_for_arrow(item, kind.value_type) for item in value]
    if isinstance(value, UUID):
        return str(value)
    return value


# -- encoding


def _encode(rows: pa.Array, settings: tuple[tuple[str, Any], ...], subject: str, message_type: Any) -> pa.Array:
    writer = _writer(settings, subject, message_type)
    kind = rows.type
    encoded = [None if row is None else writer(_from_arrow(row, kind), _CONTEXT) for row in rows.to_pylist()]
    return pa.array(encoded, pa.binary())


@cache
def _writer(settings: tuple[tuple[str, Any], ...], subject: str, message_type: Any) -> Callable[..., bytes]:
    client = _client(settings)
    format_name = _latest(settings, subject).schema.schema_type
    conf = {
        "auto.register.schemas": False,
        "use.latest.version": format_name != "PROTOBUF",  # which asks for the schema of its message class
        "subject.name.strategy": lambda *_: subject,
    }
    writer: Callable[..., bytes]
    if format_name == "AVRO":
        writer = AvroSerializer(client, None, conf=conf)
    elif format_name == "JSON":
        writer = JSONSerializer(None, client, conf=conf, to_dict=lambda value, _: _for_json(value))
    elif message_type is None:
        raise PipelineError("subject", subject, "give encoded() a message_type", f"has a schema in {format_name}")
    else:
        of_message = ProtobufSerializer(message_type, client, {**conf, "use.deprecated.format": False})

        def writer(value: Any, context: Any) -> bytes:
            found: bytes = of_message(json_format.ParseDict(_for_json(value), message_type()), context)
            return found

    return writer


def _from_arrow(value: Any, kind: pa.DataType) -> Any:
    """Python's form of an Arrow value: maps are dictionaries."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _from_arrow(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {key: _from_arrow(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [_from_arrow(item, kind.value_type) for item in value]
    return value


def _for_json(value: Any) -> Any:
    """Leaves nulls out, and writes times and decimals as text."""
    if isinstance(value, dict):
        return {key: _for_json(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_for_json(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


# -- types


def _spark_type(declared: Any, named: dict[str, T.DataType], space: str = "") -> T.DataType:
    """The Spark type of an Avro schema. `named`: its named types so far, by full name."""
    if isinstance(declared, list):
        others = [each for each in declared if each != "null"]
        if len(others) == 1:
            return _spark_type(others[0], named, space)
        raise PipelineError("schema", json.dumps(declared), "give decoded() a type", "is a union, which Spark lacks")
    if isinstance(declared, str):
        if declared in _AVRO_TYPES:
            return _AVRO_TYPES[declared]()
        known = named.get(declared) or named.get(f"{space}.{declared}")
        if known is not None:
            return known
        raise PipelineError(
            "schema", declared, "give decoded() a type", "is a type that Spark lacks or that contains itself"
        )
    kind = declared["type"]
    if not isinstance(kind, str):
        return _spark_type(kind, named, space)
    if kind == "array":
        return T.ArrayType(_spark_type(declared["items"], named, space))
    if kind == "map":
        return T.MapType(T.StringType(), _spark_type(declared["values"], named, space))
    logical = declared.get("logicalType", "")
    if kind == "record":
        space = declared.get("namespace", declared["name"].rpartition(".")[0] or space)
        fields = declared["fields"]
        found: T.DataType = T.StructType(
            [T.StructField(field["name"], _spark_type(field["type"], named, space)) for field in fields]
        )
    elif logical == "decimal":
        found = T.DecimalType(declared["precision"], declared.get("scale", 0))
    else:
        found = _spark_type(logical if logical in _AVRO_TYPES else kind, named, space)
    if "name" in declared:
        name = declared["name"].rpartition(".")[2]
        named[f"{space}.{name}" if space else name] = found
    return found
