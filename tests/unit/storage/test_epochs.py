from __future__ import annotations

import pytest

from barnabas.storage.epochs import NO_EPOCH, NO_OFFSET, EpochCache

ENTRIES = [(1, 10), (3, 20), (4, 30)]


def test_a_new_epoch_is_noted_once_and_ends_the_one_before() -> None:
    cache = EpochCache()
    assert cache.latest_epoch == NO_EPOCH
    cache.assign(0, 0)
    cache.assign(0, 5)
    cache.assign(2, 7)
    assert cache.entries == [(0, 0), (2, 7)]
    assert cache.latest_epoch == 2
    assert cache.dirty


def test_an_epoch_without_records_gives_way_to_the_next() -> None:
    cache = EpochCache([(0, 0)])
    cache.assign(1, 10)
    cache.assign(2, 10)
    assert cache.entries == [(0, 0), (2, 10)]


def test_what_contradicts_a_new_entry_goes() -> None:
    cache = EpochCache(ENTRIES)
    cache.assign(3, 25)
    assert cache.entries == [(1, 10), (3, 25)]
    cache.assign(5, 5)
    assert cache.entries == [(5, 5)]
    cache.assign(-1, 50)
    assert cache.entries == [(5, 5)]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (NO_EPOCH, NO_OFFSET)),
        (0, (0, 10)),  # older than all: where the first known one begins (KIP-279)
        (1, (1, 20)),
        (2, (1, 20)),  # unknown between two: the largest below it
        (3, (3, 30)),
        (4, (4, 99)),  # the present one ends at the log's end
        (5, (NO_EPOCH, NO_OFFSET)),
    ],
)
def test_end_offsets(epoch: int, expected: tuple[int, int]) -> None:
    assert EpochCache(ENTRIES).end_offset_for_epoch(epoch, 99) == expected


def test_no_entries_no_answer() -> None:
    assert EpochCache().end_offset_for_epoch(0, 99) == (NO_EPOCH, NO_OFFSET)


def test_the_epoch_of_an_offset() -> None:
    cache = EpochCache(ENTRIES)
    assert [cache.epoch_for_offset(o) for o in (9, 10, 19, 20, 30, 1000)] == [NO_EPOCH, 1, 1, 3, 4, 4]


def test_truncation_from_both_ends() -> None:
    cache = EpochCache(ENTRIES)
    cache.truncate_from_end(31)
    assert (cache.entries, cache.dirty) == (ENTRIES, False)
    cache.truncate_from_end(30)
    assert (cache.entries, cache.dirty) == (ENTRIES[:2], True)

    cache = EpochCache(ENTRIES)
    cache.truncate_from_start(10)
    assert (cache.entries, cache.dirty) == (ENTRIES, False)
    cache.truncate_from_start(25)
    assert cache.entries == [(3, 25), (4, 30)]
    cache.truncate_from_start(100)
    assert cache.entries == [(4, 100)]
    cache.clear()
    assert cache.entries == []
