"""Invariants: checks of the promises to clients, which hold despite any faults.

Pure functions over plain values, for simulated runs, runs of real processes and foreign clients.
Records are identified by their values, which a test makes unique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

V = TypeVar("V", bound=Hashable)
P = TypeVar("P", bound=Hashable)
_SHOWN = 5  # values named in a message


class Violation(AssertionError):
    """A promise to clients was broken."""


class TransactionOutcome(Enum):
    """The end of a transaction as its producer knows it."""

    COMMITTED = "committed"  # the commit was acknowledged
    ABORTED = "aborted"  # the abort was acknowledged, or the producer never sent a commit
    UNKNOWN = "unknown"  # the producer sent a commit, and then it or its connection died


class TransactionHistory(NamedTuple):
    """One transaction of a test: the values that it wrote to all partitions, and its outcome."""

    outcome: TransactionOutcome
    values: Sequence[Hashable]


def check_acknowledged(acknowledged: Sequence[V], found: Sequence[V]) -> None:
    """Checks that each acknowledged record of one producer is in the partition once, in the order of the sends.

    Args:
        acknowledged: acknowledged values in the order of their sends.
        found: the partition's values in order of their offsets; values of other producers and unacknowledged ones may be among them.
    """
    counts = Counter(found)
    lost = [value for value in acknowledged if not counts[value]]
    if lost:
        raise Violation(f"{len(lost)} acknowledged records are lost: {_some(lost)}")
    doubled = [value for value in acknowledged if counts[value] > 1]
    if doubled:
        raise Violation(f"{len(doubled)} acknowledged records are in the log more than once: {_some(doubled)}")
    wanted = set(acknowledged)
    order = [value for value in found if value in wanted]
    for sent, read in zip(acknowledged, order, strict=True):
        if sent != read:
            raise Violation(f"acknowledged records changed their order: {read!r} is where {sent!r} was sent")


def check_atomic(transactions: Iterable[TransactionHistory], delivered: Iterable[Hashable]) -> None:
    """Checks that a read_committed reader of all partitions gets each committed transaction completely and once, nothing of an
    aborted one, and all or nothing of one with unknown outcome."""
    counts = Counter(delivered)
    known: set[Hashable] = set()
    for number, (outcome, values) in enumerate(transactions):
        known.update(values)
        seen = [value for value in values if counts[value]]
        doubled = [value for value in values if counts[value] > 1]
        if doubled:
            raise Violation(f"transaction {number} ({outcome.value}) is delivered more than once: {_some(doubled)}")
        if outcome is TransactionOutcome.ABORTED and seen:
            raise Violation(f"transaction {number} was aborted, yet {len(seen)} of its records are seen: {_some(seen)}")
        missing = [value for value in values if not counts[value]]
        if missing and (outcome is TransactionOutcome.COMMITTED or seen):
            raise Violation(
                f"transaction {number} ({outcome.value}) is seen in part: {len(missing)} of {len(values)} records are missing: "
                f"{_some(missing)}"
            )
    foreign = [value for value in counts if value not in known]
    if foreign:
        raise Violation(f"{len(foreign)} records were delivered that no producer wrote: {_some(foreign)}")


def check_copy(source: Mapping[P, Sequence[V]], target: Mapping[P, Sequence[V]]) -> None:
    """Checks an exactly-once copy: each partition of the target has the records of the source's partition, once and in order."""
    for partition, values in source.items():
        copied = target.get(partition, ())
        if list(values) == list(copied):
            continue
        counts = Counter(copied)
        lost = [value for value in values if not counts[value]]
        doubled = [value for value, count in counts.items() if count > 1]
        raise Violation(
            f"partition {partition!r}: {len(values)} records in, {len(copied)} out, {len(lost)} lost ({_some(lost)}), "
            f"{len(doubled)} doubled ({_some(doubled)})" + ("" if lost or doubled else ", out of order or unknown")
        )
    unknown = [partition for partition in target if partition not in source and target[partition]]
    if unknown:
        raise Violation(f"records on partitions that the source does not have: {_some(unknown)}")


def check_live(seen: Sequence[V], final: Sequence[V]) -> None:
    """Checks that a read_committed reader, during the run, got a prefix of the final records of a partition.

    A record that is missing in the end was read before its commit, or was lost. A record that the reader skipped became
    visible after the reader had passed it.
    """
    for position, value in enumerate(seen):
        if position >= len(final) or final[position] != value:
            there = repr(final[position]) if position < len(final) else "the end"
            raise Violation(f"a reader saw {value!r} as committed record {position}, in the end {there} is there")


def check_stable(last_stable_offset: int, high_watermark: int) -> None:
    """Checks that the last stable offset equals the high watermark, while no transaction is open."""
    if last_stable_offset != high_watermark:
        raise Violation(
            f"the last stable offset stays at {last_stable_offset}, the high watermark is {high_watermark}: "
            "a transaction hangs"
        )


def _some(values: Sequence[object]) -> str:
    return ", ".join(map(repr, values[:_SHOWN])) + (", …" if len(values) > _SHOWN else "")
