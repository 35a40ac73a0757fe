"""Plans: ranges for tasks, ends of micro-batches, filters."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.client.types import TopicPartition
from barnabas.pipeline.planning import (
    OffsetRange,
    Pushdown,
    TriggerDelay,
    epochs_from_json,
    from_json,
    limited,
    shared,
    split,
    tasks_for,
    tasks_from_json,
    to_json,
)

datasource = pytest.importorskip("pyspark.sql.datasource")

RANGES = [OffsetRange("t", 0, 0, 1000), OffsetRange("t", 1, 500, 500), OffsetRange("t", 2, 10, 110)]


def test_one_task_a_partition_that_has_something() -> None:
    assert split(RANGES) == [RANGES[0], RANGES[2]]


def test_records_of_a_task_are_limited() -> None:
    cut = split(RANGES, max_records=400)
    assert [(r.partition, r.start, r.end) for r in cut] == [(0, 0, 333), (0, 333, 666), (0, 666, 1000), (2, 10, 110)]


def test_tasks_are_shared_out_by_size() -> None:
    cut = split(RANGES, min_partitions=11)
    assert [r.partition for r in cut].count(0) == 10
    assert [r.partition for r in cut].count(2) == 1
    assert len(split(RANGES, min_partitions=5, max_records=100)) == 11


ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 40))
def test_a_plan_covers_everything_once(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [OffsetRange("t", i, start, start + size) for i, (start, size) in enumerate(sizes)]
    cut = split(whole, min_partitions, max_records)
    assert [(r.partition, o) for r in cut for o in range(r.start, r.end)] == [
        (r.partition, o) for r in whole for o in range(r.start, r.end)
    ]
    total = sum(r.size for r in whole)
    assert all(r.size for r in cut)
    assert all(r.size <= (max_records or total) for r in cut)
    assert len(cut) >= min(min_partitions or 0, total)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 8))
def test_tasks_that_share_ranges_cover_everything_once(
    sizes: list[tuple[int, int]], min_partitions: int | None, tasks: int | None
) -> None:
    cut = split([OffsetRange("t", i, start, start + size) for i, (start, size) in enumerate(sizes)], min_partitions)
    found = shared(cut, tasks)
    assert sorted(each for task in found for each in task) == cut
    assert all(task == sorted(task) for task in found), "a partition's ranges in order"
    assert len(found) == len(cut) if tasks is None else len(found) == min(tasks, len(cut))
    assert shared(cut, tasks) == found, "a repeated batch has the same tasks"


def test_ranges_are_shared_evenly() -> None:
    found = shared([OffsetRange("t", i, 0, 100 if i == 0 else 10) for i in range(11)], 2)
    assert [sum(r.size for r in task) for task in found] == [100, 100]


def test_small_ranges_are_worth_few_tasks() -> None:
    hundred = [OffsetRange("t", i, 0, 100) for i in range(100)]
    assert tasks_for(hundred, {}) == 1
    assert tasks_for([r._replace(end=1000) for r in hundred], {}) == 10
    assert tasks_for([r._replace(end=1_000_000) for r in hundred], {}) == 100, "one for each partition at most"
    assert tasks_for([r._replace(end=1_000_000) for r in hundred], {}, 7) == 7
    assert tasks_for([OffsetRange("t", 0, 5, 5)], {}) == 1


def test_large_records_are_worth_more_tasks() -> None:
    ranges = [OffsetRange("t", i, 0, 4) for i in range(10)]
    mebibyte = {TopicPartition("t", i): 2.0**20 for i in range(10)}
    assert tasks_for(ranges, mebibyte) == 5
    assert tasks_for(ranges, {TopicPartition("t", 0): 2.0**20}) == 1


def test_a_checkpoint_keeps_the_number_of_tasks() -> None:
    offsets = {TopicPartition("b", 1): 4}
    found = json.loads(json.dumps(to_json(offsets, {TopicPartition("b", 1): 7}, 3)))
    assert found == {"b": {"1": 4}, 'leader epochs {"":{"0":3},"b":{"1":7}}': {}}
    assert from_json(found) == offsets
    assert tasks_from_json(found) == 3
    assert tasks_from_json(to_json(offsets, {TopicPartition("b", 1): 7})) is None, "an earlier version has written it"


def test_small_batches_wait_for_more_records_but_not_for_ever() -> None:
    delay = TriggerDelay(10, 1000)
    assert delay.admits(1, 5_000), "the first batch"
    assert not delay.admits(9, 5_999)
    assert delay.admits(1, 6_000)
    assert not delay.admits(9, 6_999), "the delay counts from the last batch"
    assert delay.admits(10, 6_999)
    assert not delay.admits(9, 7_998)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000)), max_size=6), st.integers(1, 1500))
def test_a_limit_is_kept_and_used_up(sizes: list[tuple[int, int]], rows_max: int) -> None:
    tps = [TopicPartition("t", i) for i in range(len(sizes))]
    start = {tp: at for tp, (at, _) in zip(tps, sizes, strict=True)}
    end = {tp: at + size for tp, (at, size) in zip(tps, sizes, strict=True)}
    found = limited(start, end, rows_max)
    assert all(start[tp] <= found[tp] <= end[tp] for tp in tps)
    taken = sum(found[tp] - start[tp] for tp in tps)
    assert taken == min(rows_max, sum(size for _, size in sizes))


def test_a_small_partition_does_not_starve() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert limited({a: 0, b: 0}, {a: 1_000_000, b: 3}, 10)[b] >= 1


def test_offsets_of_checkpoints() -> None:
    offsets = {TopicPartition("b", 10): 4, TopicPartition("b", 2): 3, TopicPartition("a", 0): 1}
    text = json.dumps(to_json(offsets))
    assert text == '{"a": {"0": 1}, "b": {"2": 3, "10": 4}}'
    assert from_json(json.loads(text)) == offsets
    assert json.dumps(to_json(dict(sorted(offsets.items())))) == text
    assert epochs_from_json(json.loads(text)) == {}, "an earlier version has written it"


def test_leader_epochs_stand_beside_the_offsets_of_a_checkpoint() -> None:
    read, unread, unknown = TopicPartition("b", 10), TopicPartition("b", 2), TopicPartition("a", 0)
    offsets = {read: 4, unread: 0, unknown: 1}
    epochs = {read: 7, unread: 7, unknown: -1, TopicPartition("gone", 0): 3}
    text = json.dumps(to_json(offsets, epochs))
    assert text == r'{"a": {"0": 1}, "b": {"2": 0, "10": 4}, "leader epochs {\"b\":{\"10\":7}}": {}}'
    assert from_json(json.loads(text)) == offsets
    assert epochs_from_json(json.loads(text)) == {read: 7}
    walked = {(topic, int(p)): offset for topic, each in json.loads(text).items() for p, offset in each.items()}
    assert walked == offsets, "a listener that walks topics meets offsets only"


def test_a_checkpoint_of_an_earlier_version() -> None:
    stored = json.loads('{"a": {"0": 1}, "b": {"2": 0, "10": 4}, "leader epochs": {"b": {"10": 7}}}')
    a, b = TopicPartition("a", 0), TopicPartition("b", 10)
    assert from_json(stored) == {a: 1, TopicPartition("b", 2): 0, b: 4}
    assert epochs_from_json(stored) == {b: 7}


def filters_of(text: str) -> list[object]:
    """Filters as Spark makes them, from `column op value` pieces."""
    names = {"=": "EqualTo", ">": "GreaterThan", ">=": "GreaterThanOrEqual", "<": "LessThan", "<=": "LessThanOrEqual"}
    made = []
    for piece in text.split(" and "):
        column, op, value = piece.split(" ", 2)
        typed: object = int(value) if value.isdigit() else value
        made.append(getattr(datasource, names[op])((column,), typed))
    return made


def test_filters_that_a_plan_honours_wholly() -> None:
    pushed = Pushdown()
    taken = filters_of("topic = t and partition = 0 and offset >= 20 and offset < 90")
    taken += [datasource.IsNotNull(("offset",)), datasource.In(("partition",), (0, 2))]
    assert pushed.push(taken) == []
    assert pushed.narrowed(RANGES) == [OffsetRange("t", 0, 20, 90)]


def test_filters_that_leave_nothing() -> None:
    pushed = Pushdown()
    assert pushed.push(filters_of("partition = 0 and partition = 2")) == []
    assert pushed.narrowed(RANGES) == []


def test_filters_that_spark_applies_itself() -> None:
    pushed = Pushdown()
    kept = [
        datasource.EqualTo(("value",), b"x"),
        datasource.Not(datasource.EqualTo(("offset",), 4)),
        datasource.GreaterThan(("offset",), 1.5),
        datasource.GreaterThan(("headers", "key"), "x"),
        datasource.StringStartsWith(("topic",), "a"),
        datasource.GreaterThan(("topic",), "a"),
    ]
    assert pushed.push(kept) == kept
    assert pushed.narrowed(RANGES) == [RANGES[0], RANGES[2]]


def test_a_time_is_a_hint_and_stays_a_filter() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=1_500)
    pushed = Pushdown()
    kept = [datasource.GreaterThan(("timestamp",), at), datasource.LessThan(("timestamp",), at)]
    assert pushed.push(kept) == kept
    assert pushed.timestamp_min_ms == int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000) + 1
