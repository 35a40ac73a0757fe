"""The sink's options and columns: what is taken, and what each refusal says."""

from __future__ import annotations

import pytest

from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.sink_options import SinkOptions, check_columns

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
STREAM = {**SERVERS, "topic": "out", "checkpointLocation": "/data/orders"}


def test_a_stream_is_exactly_once_and_named_after_its_checkpoint() -> None:
    options = SinkOptions.parse(STREAM, streaming=True)
    assert options.delivery == "exactly_once"
    assert options.sink_id.startswith("orders-")
    assert (
        SinkOptions.parse({**STREAM, "checkpointLocation": "file:///data/orders/"}, streaming=True).sink_id
        == options.sink_id
    )
    assert (
        SinkOptions.parse({**STREAM, "checkpointLocation": "/other/orders"}, streaming=True).sink_id != options.sink_id
    )
    assert SinkOptions.parse({**STREAM, "SINK.ID": "mine"}, streaming=True).sink_id == "mine"


def test_a_batch_is_at_least_once_unless_it_says_otherwise() -> None:
    assert SinkOptions.parse({**SERVERS, "topic": "out"}, streaming=False).delivery == "at_least_once"
    options = SinkOptions.parse(
        {**SERVERS, "topic": "out", "delivery": "EXACTLY_ONCE", "sink.id": "job"}, streaming=False
    )
    assert (options.delivery, options.sink_id) == ("exactly_once", "job")


@pytest.mark.parametrize(
    ("given", "streaming", "option"),
    [
        ({"topic": "out"}, False, "kafka.bootstrap.servers"),
        ({**STREAM, "delivery": "twice"}, True, "delivery"),
        ({**SERVERS, "delivery": "per_partition", "sink.id": "s"}, False, "delivery"),
        ({**SERVERS, "delivery": "exactly_once"}, False, "sink.id"),
        ({**SERVERS, "topic": "out"}, True, "sink.id"),
        ({**STREAM, "sink.id": "a.b"}, True, "sink.id"),
        ({**STREAM, "delivery": "at_least_once", "files.path": "/x"}, True, "files.path"),
        ({**STREAM, "delivery": "per_partition", "delta.path": "/x"}, True, "delta.path"),
        ({**STREAM, "delivery": "at_least_once", "iceberg.table": "c.n.t"}, True, "iceberg.table"),
        ({**STREAM, "kafka.acks": "1"}, True, "kafka.acks"),
        ({**STREAM, "kafka.enable.idempotence": "false"}, True, "kafka.enable.idempotence"),
        ({**STREAM, "kafka.compression.type": "rar"}, True, "kafka.compression.type"),
        ({**STREAM, "two.phase.commit": "maybe"}, True, "two.phase.commit"),
        ({**STREAM, "transaction.timeout.ms": "1"}, True, "transaction.timeout.ms"),
        ({**STREAM, "tropic": "out"}, True, "tropic"),
    ],
)
def test_options_that_cannot_be_are_named(given: dict[str, str], streaming: bool, option: str) -> None:
    with pytest.raises(PipelineError) as refused:
        SinkOptions.parse(given, streaming=streaming)
    assert refused.value.option == option
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("given", "columns", "words"),
    [
        ({}, [("value", "binary")], ["topic", "is missing"]),
        ({"topic": "out"}, [("key", "binary")], ["columns", "lack 'value'"]),
        ({"topic": "out"}, [("value", "int")], ["columns", "is int", "CAST(value AS STRING)"]),
        ({"topic": "out"}, [("value", "string"), ("partition", "bigint")], ["partition", "CAST(partition AS INT)"]),
        ({"topic": "out"}, [("value", "string"), ("VALUE", "string")], ["columns", "twice"]),
        ({"topic": "out"}, [("value", "string"), ("price", "double")], ["price", "would not be written", "files.path"]),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    given: dict[str, str], columns: list[tuple[str, str]], words: list[str]
) -> None:
    options = SinkOptions.parse({**SERVERS, **given}, streaming=False)
    with pytest.raises(PipelineError) as refused:
        check_columns(options, columns)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_other_columns_belong_to_files() -> None:
    given = {**STREAM, "files.path": "/out"}
    check_columns(SinkOptions.parse(given, streaming=True), [("value", "string"), ("price", "double")])
    del given["topic"]
    check_columns(SinkOptions.parse(given, streaming=True), [("price", "double")])
