"""The source without Spark, on a real Kafka and on Barnabas: what it plans and reads is what librdkafka reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

from barnabas.pipeline.discovery import ask, plan_batch
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import OffsetRange, Pushdown
from barnabas.pipeline.reading import LeftOut, read_ranges
from tests.support.pipeline import topics

pytestmark = pytest.mark.oracle


@pytest.fixture(params=["kafka", "barnabas"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def options_of(bootstrap: str, topic: str, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    return SourceOptions.parse(given | {k.replace("__", "."): v for k, v in more.items()}, streaming=False)


def planned(options: SourceOptions) -> list[OffsetRange]:
    return ask(options, lambda discovery: plan_batch(discovery, Pushdown()))


def rows_of(options: SourceOptions, ranges: list[OffsetRange]) -> Iterator[dict[str, Any]]:
    for each in ranges:
        for table in read_ranges(options, [each]):
            yield from table.to_pylist()


def test_rows_are_what_librdkafka_reads(bootstrap: str) -> None:
    topic = topics.new_topic(bootstrap, 2)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        values = [b"%d-%d" % (number, i) + bytes(i % 300) for i in range(500)]
        headers = [("h", b"1"), ("null", None)] if number % 2 else None
        more = {"headers": headers} if headers else {}
        topics.send(bootstrap, topic, values, partition=number % 2, compression_type=codec, batch_size="5000", **more)
    producer = topics.transactional(bootstrap)
    for number in range(6):
        topics.in_transaction(producer, topic, [b"t%d" % number] * 50, partition=number % 2)
        if number % 3:
            producer.abort_transaction(topics.ANSWER_SECONDS_MAX)
        else:
            producer.commit_transaction(topics.ANSWER_SECONDS_MAX)
    theirs = sorted(
        (m.partition(), m.offset(), m.key(), m.value(), m.timestamp()[1], m.headers() or None)
        for m in topics.read_committed(bootstrap, topic, 2)
    )
    options = options_of(bootstrap, topic, kafka__max__partition__fetch__bytes="20000")
    ours = [
        (
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            row["headers"] and [(h["key"], h["value"]) for h in row["headers"]],
        )
        for row in rows_of(options, planned(options))
    ]
    assert sorted(ours) == theirs
    assert len(ours) == 2600


def test_every_offset_is_accounted_for(bootstrap: str) -> None:
    topic = topics.new_topic(bootstrap)
    producer = topics.transactional(bootstrap)
    for number in range(4):
        topics.in_transaction(producer, topic, [b"v"] * 25)
        if number == 2:
            producer.abort_transaction(topics.ANSWER_SECONDS_MAX)
        else:
            producer.commit_transaction(topics.ANSWER_SECONDS_MAX)
    topics.in_transaction(producer, topic, [b"open"] * 5)
    options = options_of(bootstrap, topic)
    ranges = planned(options)
    assert [(r.start, r.end) for r in ranges] == [(0, 104)], "up to the last stable offset"
    left_out = LeftOut()
    rows = sum(table.num_rows for table in read_ranges(options, [ranges[0]], left_out))
    assert (rows, left_out.control, left_out.aborted) == (75, 4, 25)
    uncommitted = options_of(bootstrap, topic, kafka__isolation__level="read_uncommitted")
    assert [(r.start, r.end) for r in planned(uncommitted)] == [(0, 109)]
    producer.abort_transaction(topics.ANSWER_SECONDS_MAX)


def test_plans_by_time(bootstrap: str) -> None:
    topic = topics.new_topic(bootstrap, 2)
    for minute in range(10):
        for partition in range(2):
            at = 1_700_000_000_000 + minute * 60_000
            topics.send(bootstrap, topic, [b"v"], partition=partition, timestamp=at)
    by_partition = json.dumps({topic: {"0": 1_700_000_000_000 + 60_001, "1": 1_700_000_000_000}})
    ending = str(1_700_000_000_000 + 5 * 60_000)
    found = planned(options_of(bootstrap, topic, startingOffsetsByTimestamp=by_partition, endingTimestamp=ending))
    assert [(r.partition, r.start, r.end) for r in found] == [(0, 2, 5), (1, 0, 5)]
    with pytest.raises(PipelineError, match=r"startingTimestamp.*is later than every record"):
        planned(options_of(bootstrap, topic, startingTimestamp="1800000000000"))


def test_records_that_were_deleted(bootstrap: str) -> None:
    topic = topics.new_topic(bootstrap)
    topics.send(bootstrap, topic, [b"%d" % i for i in range(100)])
    topics.delete_records(bootstrap, topic, {0: 60})
    strict, lenient = options_of(bootstrap, topic), options_of(bootstrap, topic, failOnDataLoss="false")
    with pytest.raises(PipelineError, match=r"offsets 0 to 59 of partition 0 .*are lost, the log holds 60 to 100"):
        list(rows_of(strict, [OffsetRange(topic, 0, 0, 100)]))
    assert [row["offset"] for row in rows_of(lenient, [OffsetRange(topic, 0, 0, 100)])] == list(range(60, 100))
