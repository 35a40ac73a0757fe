from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.errors import InvariantViolated
from barnabas.storage.index import OffsetIndex, TimeIndex


def offset_index(*entries: tuple[int, int], base: int = 100) -> OffsetIndex:
    index = OffsetIndex(base)
    for last_offset, position in entries:
        index.append(last_offset, position)
    return index


def test_an_offset_is_looked_for_from_the_last_batch_that_ends_at_or_before_it() -> None:
    index = offset_index((109, 0), (119, 500), (139, 900))
    found = [index.entry_before(offset)[1] for offset in (0, 100, 108, 109, 118, 119, 138, 139, 10_000)]
    assert found == [0, 0, 0, 0, 0, 500, 500, 900, 900]


def test_the_end_of_a_read_is_looked_for_from_the_last_batch_within_both_bounds() -> None:
    index = offset_index((109, 0), (119, 500), (139, 900))
    assert index.entry_up_to(899, 10_000) == (119, 500)
    assert index.entry_up_to(900, 10_000) == (139, 900)
    assert index.entry_up_to(10_000, 139) == (119, 500)  # the batch at 900 ends at the bound: part of it may lie beyond
    assert index.entry_up_to(10_000, 140) == (139, 900)
    assert index.entry_up_to(10_000, 50) == (-1, 0)


def test_offset_entries_are_eight_bytes_big_endian() -> None:
    assert offset_index((109, 0), (119, 500)).to_bytes() == bytes.fromhex("00000009 00000000 00000013 000001f4")


def test_entries_that_do_not_go_up_are_our_own_fault() -> None:
    with pytest.raises(InvariantViolated):
        offset_index((109, 0), (109, 500))


def test_time_entries_are_twelve_bytes_and_only_younger_ones_count() -> None:
    index = TimeIndex(100)
    assert index.last == (-1, 100)
    for timestamp, offset in ((-1, 101), (1000, 105), (1000, 109), (900, 120), (2000, 130)):
        index.append_if_newer(timestamp, offset)
    assert index.entries() == [(1000, 105), (2000, 130)]
    assert index.to_bytes() == bytes.fromhex("00000000000003e8 00000005 00000000000007d0 0000001e")
    assert [index.offset_before(t) for t in (0, 1000, 1001, 2000, 2001)] == [100, 100, 105, 105, 130]
    assert index.last == (2000, 130)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(62, 5000)), max_size=40),
    st.booleans(),
    st.integers(0, 3),
)
def test_files_load_as_they_were_written_preallocated_or_not(
    steps: list[tuple[int, int]], preallocated: bool, ragged: int
) -> None:
    offsets, times = OffsetIndex(7), TimeIndex(7)
    offset, position = 6, 62
    for delta, size in steps:
        offset += delta
        offsets.append(offset, position)
        times.append_if_newer(offset * 10, offset)
        position += size
    tail = bytes(64) if preallocated else b"\1" * ragged  # a ragged end is no whole entry
    loaded = OffsetIndex.from_bytes(7, offsets.to_bytes() + tail, position + 1)
    assert loaded is not None
    assert loaded.entries() == offsets.entries()
    loaded_times = TimeIndex.from_bytes(7, times.to_bytes() + tail)
    assert loaded_times is not None
    assert loaded_times.entries() == times.entries()


def test_damaged_files_are_refused() -> None:
    good = offset_index((109, 0), (119, 500), (139, 900)).to_bytes()
    assert OffsetIndex.from_bytes(100, good, 900) is None  # points beyond the log
    assert OffsetIndex.from_bytes(100, good[8:16] + good[:8] + good[16:], 1000) is None
    assert OffsetIndex.from_bytes(100, good[:8] + good[:8], 1000) is None
    time = bytes.fromhex("00000000000003e8 00000005")
    assert TimeIndex.from_bytes(100, time + time) is None


@pytest.mark.parametrize(("offset", "left"), [(100, 0), (109, 0), (110, 1), (139, 2), (140, 3)])
def test_truncation_drops_batches_that_end_at_or_after_it(offset: int, left: int) -> None:
    index = offset_index((109, 0), (119, 500), (139, 900))
    index.truncate_to(offset, 10_000)
    assert len(index) == left
    times = TimeIndex(100)
    for n, last in enumerate((109, 119, 139)):
        times.append_if_newer(n, last)
    times.truncate_to(offset)
    assert len(times) == left


@pytest.mark.parametrize(("position", "left"), [(0, 0), (500, 1), (501, 2), (900, 2), (901, 3)])
def test_truncation_drops_batches_that_begin_at_or_after_it(position: int, left: int) -> None:
    index = offset_index((109, 0), (119, 500), (139, 900))
    index.truncate_to(1_000, position)
    assert len(index) == left
