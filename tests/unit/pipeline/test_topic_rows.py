"""Rows on their way to topics, without Spark: what fits a request or a topic's limit, and what becomes a dead letter."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

import pyarrow as pa

from barnabas.client import Admin, Consumer, NewTopic, Producer
from barnabas.client.errors import RecordTooLarge
from barnabas.pipeline.columns import ARROW_TYPES
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.topic_rows import TopicRows
from barnabas.runtime.clock import SystemClock
from barnabas.testing import Cluster

REQUEST_BYTES = 20_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


async def new_topic(kafka: Cluster, **config: str) -> str:
    """Configuration with underscores for dots."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        configs = {key.replace("_", "."): value for key, value in config.items()}
        await admin.create_topics([NewTopic(name, 1, 1, configs=configs)])
    return name


async def written(kafka: Cluster, rows: TopicRows, batch: pa.RecordBatch, **settings: Any) -> None:
    async with Producer(bootstrap_servers=kafka.bootstrap_servers, **settings) as producer:
        await rows.send(producer, batch)
        await rows.finish(producer)


async def read(kafka: Cluster, topic: str, count: int) -> list[Any]:
    async with Consumer(topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        return [await consumer.getone() for _ in range(count)]


def batch_of(values: list[bytes], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})


@pytest.mark.parametrize("with_headers", [False, True])
async def test_many_rows_fit_a_small_max_request_size(kafka: Cluster, with_headers: bool) -> None:
    topic = await new_topic(kafka)
    values = [b"%06d" % number * 20 for number in range(1_000)]
    headers = pa.array([[{"key": "h", "value": b"v" * 30}]] * len(values), ARROW_TYPES["headers"])
    rows = TopicRows(topic, SystemClock(), request_bytes_max=REQUEST_BYTES)
    batch = batch_of(values, **({"headers": headers} if with_headers else {}))
    await written(kafka, rows, batch, max_request_size=REQUEST_BYTES)
    assert [record.value for record in await read(kafka, topic, 1_000)] == values


async def test_batches_above_the_limit_of_a_topic_are_divided(kafka: Cluster) -> None:
    topic = await new_topic(kafka, max_message_bytes=str(REQUEST_BYTES))
    values = [b"%06d" % number * 20 for number in range(1_000)]
    await written(kafka, TopicRows(topic, SystemClock()), batch_of(values))
    assert [record.value for record in await read(kafka, topic, 1_000)] == values


async def test_a_row_above_the_limit_of_a_topic_is_an_error(kafka: Cluster) -> None:
    topic = await new_topic(kafka, max_message_bytes=str(REQUEST_BYTES))
    rows = TopicRows(topic, SystemClock(), dead_topic="dead")
    with pytest.raises(RecordTooLarge):
        await written(kafka, rows, batch_of([b"x" * (REQUEST_BYTES + 1)]))


@pytest.mark.parametrize("by_column", [False, True])
async def test_rows_that_do_not_fit_a_request_become_dead_letters(kafka: Cluster, by_column: bool) -> None:
    out, dead = await new_topic(kafka), await new_topic(kafka)
    large = b"x" * REQUEST_BYTES
    keys = pa.array([b"a", b"b", large], pa.binary())
    columns = {"key": keys, **({"topic": pa.array([out] * 3)} if by_column else {})}
    rows = TopicRows(None if by_column else out, SystemClock(), dead_topic=dead, request_bytes_max=REQUEST_BYTES)
    await written(kafka, rows, batch_of([b"1", large, b"3"], **columns), max_request_size=REQUEST_BYTES)
    assert rows.count == 3
    (good,) = await read(kafka, out, 1)
    assert (good.key, good.value) == (b"a", b"1")
    letters = await read(kafka, dead, 2)
    assert [(letter.key, letter.value) for letter in letters] == [(b"b", None), (None, None)]
    for letter in letters:
        found = dict(letter.headers)
        assert found["topic"] == out.encode()
        assert int(found["bytes"]) > REQUEST_BYTES
        assert found["error"] == b"the record does not fit kafka.max.request.size = 20000"


async def test_without_a_dead_letter_topic_a_large_row_is_an_error_that_names_it(kafka: Cluster) -> None:
    topic = await new_topic(kafka)
    rows = TopicRows(topic, SystemClock(), request_bytes_max=REQUEST_BYTES)
    with pytest.raises(PipelineError, match=r"or set dead\.letter\.topic"):
        await written(kafka, rows, batch_of([b"x" * REQUEST_BYTES]), max_request_size=REQUEST_BYTES)
