"""Rows of committed offsets: after any changes they are those of tables that have seen only the last state."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.groups.records import CommittedOffset
from barnabas.broker.metrics.group_series import ROWS_PER_SLICE, GroupOffsets
from barnabas.work import finished

Commits = dict[int, tuple[int, CommittedOffset]]
COMMITS = st.dictionaries(st.integers(0, 7), st.integers(-1, 9), max_size=5)
ENDS = st.lists(st.none() | st.integers(0, 9), max_size=6)


def commits_of(offsets: dict[int, int]) -> Commits:
    return {number: (7, CommittedOffset(offset, -1, "", 0)) for number, offset in offsets.items()}


def put(rows: GroupOffsets, topic: str, offsets: dict[int, int], ends: list[int | None]) -> None:
    for _ in rows.put(("g", topic), commits_of(offsets), ends):
        pass


def lines(rows: GroupOffsets) -> set[bytes]:
    out: list[bytes] = []
    for table in (rows.sums, rows.offsets):
        finished(table.written(out, openmetrics=False))
    return {line for line in b"".join(out).splitlines() if not line.startswith(b"#")}


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), COMMITS, ENDS), max_size=6))
def test_changes_lead_to_the_rows_of_the_last_state(steps: list[tuple[str, dict[int, int], list[int | None]]]) -> None:
    rows, last = GroupOffsets(), {}
    for topic, offsets, ends in steps:
        put(rows, topic, offsets, ends)
        last[topic] = (offsets, ends)
        fresh = GroupOffsets()
        for name, state in last.items():
            put(fresh, name, *state)
        assert lines(rows) == lines(fresh)
    for _ in rows.drop_all_but({("g", "a")}):
        pass
    assert not any(b'"b"' in line for line in lines(rows))


def test_offsets_lags_and_sums() -> None:
    rows = GroupOffsets()
    put(rows, "t", {0: 4, 2: 9, 3: -1, 8: 5}, [10, 7, 5, 3])
    assert lines(rows) == {
        b'kafka_consumergroup_current_offset_sum{consumergroup="g",topic="t"} 11',
        b'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 6',
        *(
            b'kafka_consumergroup_%b{consumergroup="g",partition="%d",topic="t"} %d' % (name, number, value)
            for name, values in ((b"current_offset", (4, -1, 9, -1)), (b"lag", (6, -1, 0, -1)))
            for number, value in enumerate(values)
        ),
    }
    put(rows, "t", {0: 4, 2: 9}, [10, 7, None, 3])
    assert not any(b"lag_sum" in line for line in lines(rows)), "the end of a committed partition is unknown"


def test_a_scrape_that_is_given_up_is_made_good() -> None:
    count = 3 * ROWS_PER_SLICE
    rows, whole = GroupOffsets(), GroupOffsets()
    first: Iterator[None] = rows.put(("g", "t"), commits_of({0: 1}), [5] * count)
    next(first)
    put(rows, "t", {0: 1, 1: 2}, [5] * (count - 1))
    put(whole, "t", {0: 1, 1: 2}, [5] * (count - 1))
    assert lines(rows) == lines(whole)
    next(rows.drop_all_but(()))
    put(rows, "t", {0: 1, 1: 2}, [5] * (count - 1))
    assert lines(rows) == lines(whole)
    second = rows.put(("g", "t"), commits_of({}), [None])
    next(second)
    for _ in rows.drop_all_but(()):
        pass
    assert lines(rows) == set()
