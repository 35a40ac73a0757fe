"""The stream's planning against a broker, called as Spark calls it, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import without_epochs
from barnabas.pipeline.stream import StreamReader
from tests.support.pipeline import topics
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.process


def reader_of(broker: ServedBroker, topic: str, **more: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    return StreamReader(SourceOptions.parse(given | more, streaming=True))


def offsets(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return without_epochs(checkpoint)[0]


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    return sorted(
        (row["partition"], row["offset"])
        for partition in reader.partitions(start, end)
        for table in reader.read(partition)
        for row in table.select(["partition", "offset"]).to_pylist()
    )


def test_batches_follow_each_other(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address, 2)
    topics.send(broker.address, topic, [b"v"] * 30)
    topics.send(broker.address, topic, [b"v"] * 10, partition=1)
    reader = reader_of(broker, topic, maxOffsetsPerTrigger="25")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(25)
    at = reader.initialOffset()
    assert at == {topic: {"0": 0, "1": 0}}
    read = []
    while (end := reader.latestOffset(at, limit)) != at:
        batch = rows(reader, at, end)
        assert len(batch) <= 25
        assert rows(reader, json.loads(json.dumps(at)), json.loads(json.dumps(end))) == batch, "run again after a crash"
        read += batch
        at = end
    assert sorted(read) == [(0, n) for n in range(30)] + [(1, n) for n in range(10)]
    assert reader.latestOffset(at, ReadAllAvailable()) is at, "the same text: Spark makes no empty batch"
    assert reader.reportLatestOffset() == {topic: {"0": 30, "1": 10}}
    assert reader.partitions(at, at) == []


def test_small_ranges_share_a_task(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address, 20)
    for partition in range(0, 20, 2):
        topics.send(broker.address, topic, [b"%d" % number for number in range(30)], partition=partition)
    reader = reader_of(broker, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (task,) = reader.partitions(start, end)
    tables = list(reader.read(task))
    assert len(tables) == 1, "one Arrow batch"
    read = [(row["partition"], row["offset"], row["value"]) for row in tables[0].to_pylist()]
    assert read == [(p, n, b"%d" % n) for p in range(0, 20, 2) for n in range(30)]
    assert len(reader_of(broker, topic, maxPartitions="3").partitions(start, end)) == 1, "the checkpoint decides"
    several = reader_of(broker, topic, minPartitions="1")
    assert len(several.partitions(start, several.latestOffset(start, ReadAllAvailable()))) == 10


def test_large_records_do_not_share_a_task(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address, 4)
    for partition in range(4):
        topics.send(broker.address, topic, [bytes(900_000)] * 6, partition=partition)
    reader = reader_of(broker, topic)
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert len(tasks) == 3, "8 MiB each"
    read = [
        row
        for task in tasks
        for table in reader.read(task)
        for row in table.select(["partition", "offset"]).to_pylist()
    ]
    assert sorted((row["partition"], row["offset"]) for row in read) == [(p, n) for p in range(4) for n in range(6)]


def test_a_small_batch_waits(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address)
    reader = reader_of(broker, topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    start = reader.initialOffset()
    topics.send(broker.address, topic, [b"v"])
    end = reader.latestOffset(start, limit)
    assert offsets(end) == {topic: {"0": 1}}, "the first batch does not"
    topics.send(broker.address, topic, [b"v"] * 9)
    assert reader.latestOffset(end, limit) is end
    assert reader.reportLatestOffset() == {topic: {"0": 10}}
    assert offsets(reader.latestOffset(end, ReadAllAvailable())) == {topic: {"0": 10}}, "Trigger.Once"
    topics.send(broker.address, topic, [b"v"])
    assert offsets(reader.latestOffset(end, limit)) == {topic: {"0": 11}}
    assert reader_of(
        broker, topic, minOffsetsPerTrigger="2", maxOffsetsPerTrigger="3"
    ).getDefaultReadLimit() == ReadMaxRows(3)
    reader.prepareForTriggerAvailableNow()
    assert offsets(reader.latestOffset(end, limit)) == {topic: {"0": 11}}


def test_available_now_ends_where_it_began_to_look(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address)
    topics.send(broker.address, topic, [b"v"] * 10)
    reader = reader_of(broker, topic)
    reader.prepareForTriggerAvailableNow()
    topics.send(broker.address, topic, [b"v"] * 10)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert offsets(end) == {topic: {"0": 10}}
    assert reader.latestOffset(end, ReadAllAvailable()) is end


def test_a_new_partition_begins_at_its_first_record(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address)
    reader = reader_of(broker, topic, startingOffsets="latest")
    start = reader.initialOffset()
    topics.add_partitions(broker.address, topic, 2)
    topics.send(broker.address, topic, [b"v"] * 5, partition=1)
    end = reader.latestOffset(start, ReadMaxRows(3))
    assert offsets(end) == {topic: {"0": 0, "1": 3}}
    assert rows(reader, start, end) == [(1, 0), (1, 1), (1, 2)]
    topics.delete_records(broker.address, topic, {1: 2})
    with pytest.raises(PipelineError, match=rf"partition 1 of '{topic}' has lost offsets 0 to 1: keep records longer"):
        reader.partitions(start, end)


def test_what_is_gone_stops_a_stream_or_not(broker: ServedBroker) -> None:
    kept, gone = topics.new_topic(broker.address), topics.new_topic(broker.address)
    strict = reader_of(broker, f"{kept},{gone}")
    lenient = reader_of(broker, f"{kept},{gone}", failOnDataLoss="false")
    for topic in (kept, gone):
        topics.send(broker.address, topic, [b"v"] * 5)
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    with topics._admin(broker.address) as admin:
        admin.delete_topics([gone])[gone].result(topics.ANSWER_SECONDS_MAX)
    with pytest.raises(PipelineError, match=rf"option 'subscribe' .*does not exist: {gone}"):
        strict.partitions(start, end)
    assert rows(lenient, start, end) == [(0, n) for n in range(5)]
    assert offsets(lenient.latestOffset(end, ReadAllAvailable())) == {kept: {"0": 5}}


def test_a_log_that_ends_before_what_was_read(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address)
    topics.send(broker.address, topic, [b"v"] * 5)
    read_before = {topic: {"0": 9}}
    with pytest.raises(PipelineError, match="ends at offset 5, and was read up to 9 already"):
        reader_of(broker, topic).latestOffset(read_before, ReadAllAvailable())
    lenient = reader_of(broker, topic, failOnDataLoss="false")
    assert offsets(lenient.latestOffset(read_before, ReadAllAvailable())) == {topic: {"0": 5}}
