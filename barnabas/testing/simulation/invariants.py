"""Invariants: what a client may never see, whatever broke on the way.

Driven by: what a test's clients wrote down (acknowledged sends, outcomes of transactions) and what a reader then found.
Emits: Violation, naming the first records that are wrong.

Pure functions over plain values, so that they judge a simulated run, a run of real processes and a foreign client alike.
Records are identified by their value, which a test makes unique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

__all__ = [
    "Outcome",
    "TransactionHistory",
    "Violation",
    "check_acknowledged",
    "check_atomic",
    "check_copy",
    "check_live",
    "check_stable",
]

V = TypeVar("V", bound=Hashable)
P = TypeVar("P", bound=Hashable)
_SHOWN = 5  # values named in a message


class Violation(AssertionError):
    """A promise to clients was broken."""


class Outcome(Enum):
    """How a transaction ended, as its own producer knows it."""

    COMMITTED = "committed"  # the commit was acknowledged
    ABORTED = "aborted"  # the abort was acknowledged, or the transaction was never asked to commit
    UNKNOWN = "unknown"  # asked to commit, and then the producer or its connection died


class TransactionHistory(NamedTuple):
    """One transaction of a test: what it wrote, all partitions together, and how it ended."""

    outcome: Outcome
    values: Sequence[Hashable]


def check_acknowledged(acknowledged: Sequence[V], found: Sequence[V]) -> None:
    """Every acknowledged record of one producer on one partition is in the log once, in the order it was sent.

    Args:
        acknowledged: values in the order they were sent; those without an acknowledgement are left out.
        found: the partition's values in order of their offsets; other producers' and unacknowledged ones may lie between.
    """
    counts = Counter(found)
    lost = [value for value in acknowledged if not counts[value]]
    if lost:
        raise Violation(f"{len(lost)} acknowledged records are lost: {_some(lost)}")
    doubled = [value for value in acknowledged if counts[value] > 1]
    if doubled:
        raise Violation(f"{len(doubled)} acknowledged records are there more than once: {_some(doubled)}")
    wanted = set(acknowledged)
    order = [value for value in found if value in wanted]
    for sent, read in zip(acknowledged, order, strict=True):
        if sent != read:
            raise Violation(f"acknowledged records changed their order: {read!r} is where {sent!r} was sent")


def check_atomic(transactions: Iterable[TransactionHistory], delivered: Iterable[Hashable]) -> None:
    """A read_committed reader of all partitions sees every committed transaction whole and once, nothing of an aborted one,
    and of one with unknown outcome all or nothing."""
    counts = Counter(delivered)
    known: set[Hashable] = set()
    for number, (outcome, values) in enumerate(transactions):
        known.update(values)
        seen = [value for value in values if counts[value]]
        doubled = [value for value in values if counts[value] > 1]
        if doubled:
            raise Violation(f"transaction {number} ({outcome.value}) is delivered more than once: {_some(doubled)}")
        if outcome is Outcome.ABORTED and seen:
            raise Violation(f"transaction {number} was aborted, yet {len(seen)} of its records are seen: {_some(seen)}")
        missing = [value for value in values if not counts[value]]
        if missing and (outcome is Outcome.COMMITTED or seen):
            raise Violation(
                f"transaction {number} ({outcome.value}) is seen in part: {len(missing)} of {len(values)} records are missing: "
                f"{_some(missing)}"
            )
    foreign = [value for value in counts if value not in known]
    if foreign:
        raise Violation(f"{len(foreign)} records were delivered that nobody wrote: {_some(foreign)}")


def check_copy(source: Mapping[P, Sequence[V]], target: Mapping[P, Sequence[V]]) -> None:
    """An exactly-once copy: each partition of the target holds what the source's holds, once and in order."""
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
    """What a read_committed reader saw of a partition while all went on is what is there in the end, as far as it came.

    A record that was seen and is gone was read before it was committed, or lost after; one that was passed over became
    visible behind the reader's back.
    """
    for position, value in enumerate(seen):
        if position >= len(final) or final[position] != value:
            there = repr(final[position]) if position < len(final) else "the end"
            raise Violation(f"a reader saw {value!r} as committed record {position}, in the end {there} is there")


def check_stable(last_stable_offset: int, high_watermark: int) -> None:
    """With no transaction open, the last stable offset has caught up with the high watermark."""
    if last_stable_offset != high_watermark:
        raise Violation(
            f"the last stable offset stays at {last_stable_offset}, the high watermark is {high_watermark}: "
            "a transaction hangs"
        )


def _some(values: Sequence[object]) -> str:
    return ", ".join(map(repr, values[:_SHOWN])) + (", …" if len(values) > _SHOWN else "")
