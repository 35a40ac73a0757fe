"""Huge requests about transactions and producers."""

from __future__ import annotations

from typing import Final

from tests.support.processes.huge.request import (
    ELEMENTS,
    GROUP,
    HALF,
    TRANSACTION,
    WIDE,
    BrokerObjects,
    Huge,
    named,
    names,
    numbered,
)
from tests.support.requests import Fields

THIRD: Final = ELEMENTS // 3


def identity(world: BrokerObjects, prefix: str = "") -> Fields:
    fields = {"transactional_id": TRANSACTION, "producer_id": world.producer_id, "producer_epoch": world.producer_epoch}
    return {prefix + name: value for name, value in fields.items()}


def add_partitions(world: BrokerObjects, count: int) -> Fields:
    topics = [{"name": WIDE, "partitions": list(range(count))}]
    return {**identity(world, "v3_and_below_"), "v3_and_below_topics": topics}


def add_transactions(count: int) -> Fields:
    topics = named([WIDE], partitions=[0])
    one = {"producer_id": 1, "producer_epoch": 0, "verify_only": True, "topics": topics}
    return {"transactions": [{"transactional_id": name, **one} for name in names(count)]}


def commit_offsets(world: BrokerObjects) -> Fields:
    parts = [{"partition_index": n, "committed_offset": n} for n in range(ELEMENTS - 1)]
    topics = named([WIDE], partitions=parts)
    return {**identity(world), "group_id": GROUP, "generation_id": -1, "topics": topics}


def markers(count: int, partitions: int) -> Fields:
    """Aborts a transaction of each of `count` producers in the same partitions."""
    topics = named([WIDE], partition_indexes=list(range(partitions)))
    fields: Fields = {"producer_epoch": 0, "transaction_result": False, "topics": topics, "coordinator_epoch": 0}
    return {"markers": numbered(count, 1_000_000, key="producer_id", **fields)}


def list_transactions(_world: BrokerObjects) -> Fields:
    producers = list(range(HALF))
    pattern = "(a*)*" * 6_000
    return {"state_filters": names(HALF), "producer_id_filters": producers, "transactional_id_pattern": pattern}


TRANSACTIONS: Final = (
    Huge("AddPartitionsToTxn: unknown partitions", 3, {0, 3, 55}, lambda w: add_partitions(w, ELEMENTS - 1)),
    Huge("AddPartitionsToTxn: every partition", 3, {0}, lambda w: add_partitions(w, w.partitions)),
    Huge("AddPartitionsToTxn: many transactions", 5, {0, 49}, lambda w: add_transactions(THIRD)),
    Huge("TxnOffsetCommit: every partition", 3, {0, 3, 48}, commit_offsets),
    # The transaction has all partitions of the wide topic.
    Huge("EndTxn: markers for every partition", 4, {0}, lambda w: {**identity(w), "committed": True}),
    Huge("WriteTxnMarkers: many markers", 1, {0}, lambda w: markers(THIRD, 1)),
    Huge("WriteTxnMarkers: many partitions", 1, {0, 3}, lambda w: markers(1, ELEMENTS - 2)),
    Huge(
        "DescribeProducers: many partitions",
        0,
        {0, 3},
        lambda w: {"topics": named([WIDE], partition_indexes=list(range(ELEMENTS - 1)))},
    ),
    Huge("DescribeTransactions: unknown", 0, {105}, lambda w: {"transactional_ids": names(ELEMENTS)}),
    Huge("ListTransactions: many filters", 2, {0, 128}, list_transactions),
)
