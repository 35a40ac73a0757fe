"""Requests about transactions and producers, to coordinators and to partition leaders."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.client.admin.requests import AdminRequests
from barnabas.client.admin.types import ProducerDescription, TransactionDescription, TransactionListing
from barnabas.client.types import TopicPartition
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)


class TransactionAdmin(AdminRequests):
    """Requests about transactions and producers."""

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[TransactionListing]:
        """Returns the transactional ids of the cluster with their state (KIP-664), filtered unless a filter is empty."""
        await self._connected()
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
        found = []
        for node_id in sorted(self._cluster.metadata.brokers):
            response = await self._retried(request, node_id=node_id)
            found += [
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
                for t in response.transaction_states
            ]
        return found

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Returns the state of a transactional id (KIP-664). Raises KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
        response = await self._coordinated(
            "transaction",
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda r: r.transaction_states[0],
        )
        t = response.transaction_states[0]
        return TransactionDescription(
            t.transactional_id,
            t.producer_id,
            t.producer_epoch,
            t.transaction_state,
            t.transaction_timeout_ms,
            t.transaction_start_time_ms,
            tuple(TopicPartition(d.topic, p) for d in t.topics for p in d.partitions),
        )

    async def find_transaction_coordinator(self, transactional_id: str) -> int:
        """Returns the node id of the present coordinator of a transactional id."""
        await self._connected()
        self._cluster.forget_coordinator("transaction", transactional_id)
        return await self._cluster.find_coordinator("transaction", transactional_id)

    async def describe_producers(
        self, partition: TopicPartition, *, timeout_ms: int | None = None
    ) -> list[ProducerDescription]:
        """Returns the producers of a partition with their open transactions, from its leader (KIP-664)."""
        await self._connected()
        self._cluster.add_topics([partition.topic])
        topic = TopicPartitionIndexes(name=partition.topic, partition_indexes=[partition.partition])
        found = await self._of_leader(
            partition,
            DescribeProducersRequest(topics=[topic]),
            lambda r: r.topics[0].partitions[0],
            timeout_ms=timeout_ms,
        )
        return [
            ProducerDescription(
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.last_timestamp,
                p.current_txn_start_offset,
                p.coordinator_epoch,
            )
            for p in found.active_producers
        ]

    async def abort_transaction(
        self, partition: TopicPartition, producer: ProducerDescription, *, timeout_ms: int | None = None
    ) -> None:
        """Aborts a transaction in one partition that its coordinator no longer knows (KIP-664).

        The producer, or the next one with its transactional id, ends a transaction that the coordinator knows.

        Args:
            producer: a result of `describe_producers`.
        """
        await self._connected()
        self._cluster.add_topics([partition.topic])
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[TopicPartitionIndexes(name=partition.topic, partition_indexes=[partition.partition])],
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )
        await self._of_leader(
            partition,
            WriteTxnMarkersRequest(markers=[marker]),
            lambda r: r.markers[0].topics[0].partitions[0],
            timeout_ms=timeout_ms,
        )
