"""Huge requests about transactions and producers."""

from __future__ import annotations

from typing import Final

from barnabas.protocol.messages import transactions
from tests.support.processes.huge.request import ELEMENTS, GROUP, HALF, TRANSACTION, WIDE, BrokerObjects, Huge, names

__all__ = ["TRANSACTIONS"]

THIRD: Final = ELEMENTS // 3


def add_partitions(world: BrokerObjects, count: int) -> transactions.AddPartitionsToTxnRequest:
    return transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TRANSACTION,
        v3_and_below_producer_id=world.producer_id,
        v3_and_below_producer_epoch=world.producer_epoch,
        v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name=WIDE, partitions=list(range(count)))],
    )


def add_transactions(count: int) -> transactions.AddPartitionsToTxnRequest:
    topics = [transactions.AddPartitionsToTxnTopic(name=WIDE, partitions=[0])]
    return transactions.AddPartitionsToTxnRequest(
        transactions=[
            transactions.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=1, producer_epoch=0, verify_only=True, topics=topics
            )
            for name in names(count)
        ]
    )


def commit_offsets(world: BrokerObjects) -> transactions.TxnOffsetCommitRequest:
    parts = [
        transactions.TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(ELEMENTS - 1)
    ]
    return transactions.TxnOffsetCommitRequest(
        transactional_id=TRANSACTION,
        group_id=GROUP,
        producer_id=world.producer_id,
        producer_epoch=world.producer_epoch,
        generation_id=-1,
        topics=[transactions.TxnOffsetCommitRequestTopic(name=WIDE, partitions=parts)],
    )


def commit(world: BrokerObjects) -> transactions.EndTxnRequest:
    """Commits the transaction, which has all partitions of the wide topic."""
    return transactions.EndTxnRequest(
        transactional_id=TRANSACTION,
        producer_id=world.producer_id,
        producer_epoch=world.producer_epoch,
        committed=True,
    )


def markers(count: int, partitions: int) -> transactions.WriteTxnMarkersRequest:
    """Aborts a transaction of each of `count` producers in the same partitions."""
    topics = [transactions.WritableTxnMarkerTopic(name=WIDE, partition_indexes=list(range(partitions)))]
    return transactions.WriteTxnMarkersRequest(
        markers=[
            transactions.WritableTxnMarker(
                producer_id=1_000_000 + n,
                producer_epoch=0,
                transaction_result=False,
                topics=topics,
                coordinator_epoch=0,
            )
            for n in range(count)
        ]
    )


def describe_producers(_world: BrokerObjects) -> transactions.DescribeProducersRequest:
    topic = transactions.DescribeProducersTopic(name=WIDE, partition_indexes=list(range(ELEMENTS - 1)))
    return transactions.DescribeProducersRequest(topics=[topic])


def describe_transactions(_world: BrokerObjects) -> transactions.DescribeTransactionsRequest:
    return transactions.DescribeTransactionsRequest(transactional_ids=names(ELEMENTS))


def list_transactions(_world: BrokerObjects) -> transactions.ListTransactionsRequest:
    return transactions.ListTransactionsRequest(
        state_filters=names(HALF), producer_id_filters=list(range(HALF)), transactional_id_pattern="(a*)*" * 6_000
    )


TRANSACTIONS: Final = (
    Huge("AddPartitionsToTxn: unknown partitions", 3, {0, 3, 55}, lambda w: add_partitions(w, ELEMENTS - 1)),
    Huge("AddPartitionsToTxn: every partition", 3, {0}, lambda w: add_partitions(w, w.partitions)),
    Huge("AddPartitionsToTxn: many transactions", 5, {0, 49}, lambda w: add_transactions(THIRD)),
    Huge("TxnOffsetCommit: every partition", 3, {0, 3, 48}, commit_offsets),
    Huge("EndTxn: markers for every partition", 4, {0}, commit),
    Huge("WriteTxnMarkers: many markers", 1, {0}, lambda w: markers(THIRD, 1)),
    Huge("WriteTxnMarkers: many partitions", 1, {0, 3}, lambda w: markers(1, ELEMENTS - 2)),
    Huge("DescribeProducers: many partitions", 0, {0, 3}, describe_producers),
    Huge("DescribeTransactions: unknown", 0, {105}, describe_transactions),
    Huge("ListTransactions: many filters", 2, {0, 128}, list_transactions),
)
