"""Rows in Schema Registry's wire format under Spark, and dead letters in the transaction of the other rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
pytest.importorskip("fastavro", reason="the extra `registry` is not installed")

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import functions as F

from barnabas.pipeline import BarnabasDataSource
from barnabas.pipeline.java import java_home
from tests.support.pipeline.connector import NoConnector
from tests.support.pipeline.registry import served_registry
from tests.support.pipeline.topics import new_topic, read_committed, send
from tests.support.processes.served import ServedBroker
from tests.support.snippets import snippets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": null}]}"""
SNIPPET = snippets(Path(__file__).parents[2] / "docs" / "pipeline.md", "python")[-1]
LARGE = 50_000  # characters of a note that does not fit max.request.size


@pytest.fixture(scope="module")
def registry(broker: ServedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with served_registry(tmp_path_factory.mktemp("registry"), broker.address, java_home() / "bin" / "java") as url:
            yield url
    except NoConnector as error:
        pytest.skip(f"no registry: {error}")


def test_orders_are_decoded_and_encoded_and_the_others_become_dead_letters(
    spark: SparkSession, broker: ServedBroker, registry: str, tmp_path: Path
) -> None:
    spark.dataSource.register(BarnabasDataSource)
    origin, checked, dead = (new_topic(broker.address) for _ in range(3))
    client = SchemaRegistryClient({"url": registry})
    for topic in (origin, checked):
        client.register_schema(f"{topic}-value", Schema(ORDER, "AVRO"))
    serializer = AvroSerializer(client, ORDER)
    context = SerializationContext(origin, MessageField.VALUE)
    orders = [serializer({"id": n, "note": "x" * LARGE if n == 3 else None}, context) for n in range(5)]
    send(broker.address, origin, [*orders, b"not Avro", b"\0\0\0\0\0" + orders[0][5:], None], key=b"k")

    frame = (
        spark.readStream.format("barnabas")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", origin)
        .option("startingOffsets", "earliest")
        .load()
    )
    names: dict[str, Any] = {"frame": frame, "F": F}
    code = SNIPPET.replace("http://localhost:8081", registry).replace("orders-value", f"{origin}-value")
    exec(code.replace("checked", checked).replace("orders-dead", dead), names)
    query = (
        names["routed"]
        .writeStream.format("barnabas")
        .option("kafka.bootstrap.servers", broker.address)
        .option("dead.letter.topic", dead)
        .option("kafka.max.request.size", LARGE)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300), "the query did not end"

    read = [(m.key(), m.value()) for m in read_committed(broker.address, checked, 1)]
    deserializer = AvroDeserializer(client)
    decoded = [value and deserializer(value, SerializationContext(checked, MessageField.VALUE)) for _, value in read]
    assert decoded == [{"id": n, "note": None} for n in (0, 1, 2, 4)] + [None]
    letters = {m.value(): dict(m.headers() or []) for m in read_committed(broker.address, dead, 1)}
    assert {value and value[:8] for value in letters} == {b"not Avro", b"\0\0\0\0\0" + orders[0][5:8], None}
    assert letters[b"not Avro"] == {"error": b"the bytes do not begin with a zero and the number of a schema"}
    assert letters[None]["topic"] == checked.encode()
    assert int(letters[None]["bytes"] or 0) > LARGE
