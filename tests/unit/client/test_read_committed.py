"""The read_committed filter: a worked table, and random logs judged by who really aborted, from every fetch offset."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from barnabas.client.consumer.core.read_committed import AbortedFilter

PLAIN = -1


class Entry(NamedTuple):
    """A batch of one record, or a marker."""

    offset: int
    producer_id: int
    marker: str = ""  # "", "commit" or "abort"


class Transaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # in the table: of its last record; in the random logs: of its marker


def deliver(log: list[Entry], aborted: list[tuple[int, int]]) -> list[int]:
    """The offsets that come through."""
    judge = AbortedFilter(aborted)
    found = []
    for entry in log:
        if entry.marker:
            judge.on_marker(entry.producer_id, entry.offset, abort=entry.marker == "abort")
        elif judge.delivers(entry.producer_id, entry.offset, transactional=entry.producer_id != PLAIN):
            found.append(entry.offset)
    return found


# Offsets 100-115. Each transaction's marker follows its last record and takes no offset of its own.
WRITER = dict.fromkeys(range(100, 116), PLAIN)
WRITER |= dict.fromkeys((101, 102, 115), 10)
WRITER |= dict.fromkeys((103, 106, 110, 112), 11)
WRITER |= dict.fromkeys((104, 107, 108, 111), 12)
TRANSACTIONS = [
    Transaction(10, 101, 115),
    Transaction(11, 103, 106),
    Transaction(11, 110, 112),
    Transaction(12, 104, 111),
]


@pytest.mark.parametrize(
    ("aborted", "delivered"),
    [
        ([], set(range(100, 116))),
        ([Transaction(10, 101, 115)], set(range(100, 116)) - {101, 102, 115}),
        ([Transaction(11, 110, 112)], set(range(100, 116)) - {110, 112}),
        (
            [Transaction(10, 101, 115), Transaction(11, 103, 106), Transaction(12, 104, 111)],
            {100, 105, 109, 110, 112, 113, 114},
        ),
    ],
    ids=["none", "10", "second of 11", "10, first of 11, 12"],
)
@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "in reverse"])
def test_the_worked_table(aborted: list[Transaction], delivered: set[int], reverse: bool) -> None:
    assert [offset for offset, writer in WRITER.items() if writer == PLAIN] == [100, 105, 109, 113, 114]
    log = []
    for offset, writer in WRITER.items():
        log.append(Entry(offset, writer))
        log += [
            Entry(offset, transaction.producer_id, "abort" if transaction in aborted else "commit")
            for transaction in TRANSACTIONS
            if transaction.last_offset == offset
        ]
    listed = [(transaction.producer_id, transaction.first_offset) for transaction in aborted]
    assert deliver(log, listed[::-1] if reverse else listed) == sorted(delivered)


def random_log(rng: random.Random) -> tuple[list[Entry], list[Transaction], set[int]]:
    """A log without open transactions; its aborted ones in the order of their markers; the offsets that count."""
    log: list[Entry] = []
    aborted: list[Transaction] = []
    counted: set[int] = set()
    open_since: dict[int, list[int]] = {}
    while len(log) < 60 or open_since:
        offset = len(log)
        if open_since and (len(log) >= 60 or rng.random() < 0.25):
            producer_id = rng.choice(sorted(open_since))
            offsets = open_since.pop(producer_id)
            if rng.random() < 0.5:
                log.append(Entry(offset, producer_id, "abort"))
                aborted.append(Transaction(producer_id, offsets[0], offset))
            else:
                log.append(Entry(offset, producer_id, "commit"))
                counted.update(offsets)
        else:
            producer_id = rng.choice([PLAIN, 1, 2, 3, 4])
            log.append(Entry(offset, producer_id))
            if producer_id == PLAIN:
                counted.add(offset)
            else:
                open_since.setdefault(producer_id, []).append(offset)
    return log, aborted, counted


@pytest.mark.parametrize("seed", range(20))
def test_from_every_fetch_offset_what_counts_comes_through(seed: int) -> None:
    rng = random.Random(seed)
    log, aborted, counted = random_log(rng)
    assert aborted
    for start in range(len(log)):
        end = rng.randint(start + 1, len(log))
        overlapping = [
            (each.producer_id, each.first_offset)
            for each in aborted
            if each.last_offset >= start and each.first_offset < end
        ]
        rng.shuffle(overlapping)
        assert deliver(log[start:end], overlapping) == [offset for offset in range(start, end) if offset in counted]
        # Some that begin after the range, as Kafka may name them, change nothing.
        more = overlapping + [(each.producer_id, each.first_offset) for each in aborted if each.first_offset >= end]
        assert deliver(log[start:end], more) == [offset for offset in range(start, end) if offset in counted]


def test_a_batch_that_holds_the_first_offset_inside_is_dropped() -> None:
    """The list tells the first offset; compaction may have moved the batch's own bounds around it."""
    judge = AbortedFilter([(7, 105)])
    assert not judge.delivers(7, 109, transactional=True)


def test_a_commit_marker_does_not_end_an_aborted_transaction() -> None:
    judge = AbortedFilter([(7, 100)])
    assert not judge.delivers(7, 100, transactional=True)
    judge.on_marker(7, 101, abort=False)
    assert not judge.delivers(7, 102, transactional=True)


def test_records_outside_transactions_are_never_dropped() -> None:
    """A producer id may have written before it became transactional."""
    judge = AbortedFilter([(7, 100)])
    assert judge.delivers(7, 101, transactional=False)


def test_the_marker_alone_brings_its_transaction_in_and_out() -> None:
    """The fetch began behind the last aborted record: only the marker is left of it."""
    judge = AbortedFilter([(7, 100)])
    judge.on_marker(7, 110, abort=True)
    assert judge.delivers(7, 111, transactional=True)
