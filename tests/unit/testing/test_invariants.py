"""Invariants bite: each kind of broken promise is named, and sound histories pass."""

from __future__ import annotations

import pytest

from barnabas.testing.simulation.invariants import (
    TransactionHistory,
    TransactionOutcome,
    Violation,
    check_acknowledged,
    check_atomic,
    check_copy,
    check_live,
    check_stable,
)

COMMITTED = TransactionHistory(TransactionOutcome.COMMITTED, ["a1", "a2"])
ABORTED = TransactionHistory(TransactionOutcome.ABORTED, ["b1", "b2"])
UNKNOWN = TransactionHistory(TransactionOutcome.UNKNOWN, ["c1", "c2"])


def test_acknowledged_records_may_have_others_between_them() -> None:
    check_acknowledged([1, 2, 3], [0, 1, 9, 2, 9, 3])


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ([1, 3], "1 acknowledged records are lost: 2"),
        ([1, 2, 2, 3], "more than once: 2"),
        ([2, 1, 3], "changed their order"),
    ],
)
def test_acknowledged_records_lost_doubled_or_moved(found: list[int], complaint: str) -> None:
    with pytest.raises(Violation, match=complaint):
        check_acknowledged([1, 2, 3], found)


@pytest.mark.parametrize("delivered", [["a1", "a2"], ["c2", "a1", "c1", "a2"]])
def test_whole_transactions(delivered: list[str]) -> None:
    check_atomic([COMMITTED, ABORTED, UNKNOWN], delivered)


@pytest.mark.parametrize(
    ("delivered", "complaint"),
    [
        (["a1"], r"transaction 0 \(committed\) is seen in part"),
        ([], r"transaction 0 \(committed\) is seen in part"),
        (["a1", "a2", "a2"], "more than once: 'a2'"),
        (["a1", "a2", "b1"], "transaction 1 was aborted"),
        (["a1", "a2", "c1"], r"transaction 2 \(unknown\) is seen in part"),
        (["a1", "a2", "x"], "no producer wrote: 'x'"),
    ],
)
def test_transactions_that_are_not_atomic(delivered: list[str], complaint: str) -> None:
    with pytest.raises(Violation, match=complaint):
        check_atomic([COMMITTED, ABORTED, UNKNOWN], delivered)


def test_a_copy() -> None:
    check_copy({0: [1, 2], 1: []}, {0: [1, 2]})


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ({0: [1]}, r"2 records in, 1 out, 1 lost \(2\)"),
        ({0: [1, 2, 2]}, r"1 doubled \(2\)"),
        ({0: [2, 1]}, "out of order"),
        ({0: [1, 2], 5: [3]}, "does not have: 5"),
    ],
)
def test_a_copy_that_is_none(target: dict[int, list[int]], complaint: str) -> None:
    with pytest.raises(Violation, match=complaint):
        check_copy({0: [1, 2]}, target)


def test_a_last_stable_offset_that_stays_behind() -> None:
    check_stable(10, 10)
    with pytest.raises(Violation, match="stays at 9"):
        check_stable(9, 10)


def test_a_live_reader_saw_the_beginning_of_what_is_there() -> None:
    check_live([1, 2], [1, 2, 3])
    check_live([], [])
    for seen in ([1, 3], [1, 2, 3, 4], [2, 3]):
        with pytest.raises(Violation, match="a reader saw"):
            check_live(seen, [1, 2, 3])
