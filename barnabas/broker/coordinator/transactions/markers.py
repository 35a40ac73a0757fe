"""Marker channel: sends the outcome of prepared transactions to the leaders of their partitions (KIP-98, KIP-890)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from barnabas.broker.api.call import Done
from barnabas.broker.coordinator.transactions.state import TransactionMetadata, TransactionState
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from barnabas.storage.checkpoints import TopicPartition

log = logger("kafka.coordinator.transaction")

RETRY_MS = 100  # between attempts for a partition
NO_LEADER = -1
PARTITIONS_PER_REQUEST = 10_000  # about 1 MB; a decoder accepts more (DECODED_ELEMENTS_MAX)

# Only a newer coordinator, which has taken over the transaction, causes these errors.
_SUPERSEDED = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))
_DONE = frozenset((ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION))


class MarkerGateway(Protocol):
    """Finds partition leaders and sends markers to them."""

    def leader_of(self, topic: str, partition: int) -> int | None:
        """-1 without a leader, None if the partition does not exist."""
        ...

    def send(
        self,
        broker_id: int,
        request: WriteTxnMarkersRequest,
        done: Done[WriteTxnMarkersResponse],
    ) -> None:
        """Sends to a broker, which may be this one; may call `done` before it returns."""
        ...

    def soon(self, callback: Callable[[], None]) -> None: ...

    def retry_later(self, delay_ms: int, callback: Callable[[], None]) -> None: ...


class _Delivery:
    """A prepared transaction, and its partitions without marker."""

    __slots__ = ("coordinator_epoch", "dropped", "prepared", "remaining", "state_partition")

    def __init__(self, state_partition: int, coordinator_epoch: int, prepared: TransactionMetadata) -> None:
        self.state_partition = state_partition
        self.coordinator_epoch = coordinator_epoch
        self.prepared = prepared
        self.remaining: dict[TopicPartition, None] = dict.fromkeys(sorted(prepared.partitions))
        self.dropped = False


_Asked = tuple[_Delivery, list[TopicPartition]]


class _Attempt:
    """One request to one broker, without the partitions that have been sent to another leader since."""

    __slots__ = ("asked", "broker_id", "size")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.asked: list[_Asked] = []
        self.size = 0


class MarkerChannel:
    """The markers that this node has to send, until all partitions have theirs. Retriable errors are Kafka's.

    Each attempt looks up the leader; a change during a request sends the marker to the new leader at once, because a repeated marker is
    harmless. A deleted partition needs none. Invariants: a transaction is in the channel at most once; each of its partitions is in one
    request, due, or waiting for the retry; none is dropped while this node coordinates it, unless a partition names a newer coordinator.
    `on_written`: (partition of the state topic, prepared transaction): all its markers are committed.
    """

    def __init__(self, gateway: MarkerGateway, on_written: Callable[[int, TransactionMetadata], None]) -> None:
        self._gateway = gateway
        self._on_written = on_written
        self._deliveries: dict[str, _Delivery] = {}
        self._due: list[_Asked] = []
        self._flush_due = False
        self._attempts: dict[_Attempt, None] = {}  # in flight
        self._failed: list[_Asked] = []
        self._retry_due = False

    def __len__(self) -> int:
        return len(self._deliveries)

    def add(self, state_partition: int, coordinator_epoch: int, prepared: TransactionMetadata) -> None:
        delivery = _Delivery(state_partition, coordinator_epoch, prepared)
        self._deliveries[prepared.transactional_id] = delivery
        self._due.append((delivery, list(delivery.remaining)))
        self._schedule()

    def drop(self, state_partition: int) -> None:
        """Drops the transactions of a state partition; its new leader sends their markers."""
        for transactional_id, delivery in list(self._deliveries.items()):
            if delivery.state_partition == state_partition:
                delivery.dropped = True
                del self._deliveries[transactional_id]

    def on_leaders_moved(self) -> None:
        """Sends markers again whose partition has another leader now or was deleted."""
        leader_of = self._gateway.leader_of
        for attempt in self._attempts:
            for number, (delivery, led) in enumerate(attempt.asked):
                stayed = [key for key in led if leader_of(*key) == attempt.broker_id]
                if len(stayed) < len(led):
                    attempt.asked[number] = delivery, stayed
                    self._due.append((delivery, [key for key in led if leader_of(*key) != attempt.broker_id]))
        failed, self._failed = self._failed, []
        self._due.extend(failed)
        if self._due:
            self._schedule()

    def _schedule(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._gateway.soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        due, self._due = self._due, []
        by_broker: dict[int, list[_Attempt]] = {}
        for delivery, partitions in due:
            if delivery.dropped:
                continue
            by_leader: dict[int, list[TopicPartition]] = {}
            for topic, partition in partitions:
                leader = self._gateway.leader_of(topic, partition)
                if leader is None:
                    delivery.remaining.pop((topic, partition), None)
                else:
                    by_leader.setdefault(leader, []).append((topic, partition))
            for leader, led in by_leader.items():
                if leader == NO_LEADER:
                    self._retry_later(delivery, led)
                    continue
                attempts = by_broker.setdefault(leader, [])
                if not attempts or attempts[-1].size + len(led) > PARTITIONS_PER_REQUEST:
                    attempts.append(_Attempt(leader))
                attempts[-1].asked.append((delivery, led))
                attempts[-1].size += len(led)
            if not delivery.remaining:
                self._report_written(delivery)
        for attempts in by_broker.values():
            for attempt in attempts:
                self._attempts[attempt] = None
                request = WriteTxnMarkersRequest(markers=[_marker(delivery, led) for delivery, led in attempt.asked])
                self._gateway.send(attempt.broker_id, request, partial(self._on_answer, attempt))

    def _on_answer(self, attempt: _Attempt, answer: WriteTxnMarkersResponse | BrokerError) -> None:
        self._attempts.pop(attempt, None)
        codes: dict[tuple[int, str, int], int] = {}
        if not isinstance(answer, BrokerError):
            codes = {
                (marker.producer_id, topic.name, result.partition_index): result.error_code
                for marker in answer.markers
                for topic in marker.topics
                for result in topic.partitions
            }
        for delivery, led in attempt.asked:
            if delivery.dropped:
                continue
            producer_id = delivery.prepared.producer_id
            again = []
            for topic, partition in led:
                code = codes.get((producer_id, topic, partition), int(ErrorCode.NETWORK_EXCEPTION))
                if code in _DONE:
                    delivery.remaining.pop((topic, partition), None)
                elif code in _SUPERSEDED:
                    self._drop_superseded(delivery, code, topic, partition)
                    break
                else:
                    log.debug(
                        "Marker is sent again: transactional_id=%s topic=%s partition=%d broker=%d error=%d",
                        delivery.prepared.transactional_id,
                        topic,
                        partition,
                        attempt.broker_id,
                        code,
                    )
                    again.append((topic, partition))
            if again:
                self._retry_later(delivery, again)
            if not delivery.remaining and not delivery.dropped:
                self._report_written(delivery)

    def _report_written(self, delivery: _Delivery) -> None:
        delivery.dropped = True
        del self._deliveries[delivery.prepared.transactional_id]
        self._on_written(delivery.state_partition, delivery.prepared)

    def _drop_superseded(self, delivery: _Delivery, code: int, topic: str, partition: int) -> None:
        log.warning(
            "Markers are left to a newer coordinator: transactional_id=%s topic=%s partition=%d error=%d coordinator_epoch=%d",
            delivery.prepared.transactional_id,
            topic,
            partition,
            code,
            delivery.coordinator_epoch,
        )
        delivery.dropped = True
        del self._deliveries[delivery.prepared.transactional_id]

    def _retry_later(self, delivery: _Delivery, partitions: list[TopicPartition]) -> None:
        self._failed.append((delivery, partitions))
        if not self._retry_due:
            self._retry_due = True
            self._gateway.retry_later(RETRY_MS, self._on_retry)

    def _on_retry(self) -> None:
        self._retry_due = False
        failed, self._failed = self._failed, []
        self._due.extend(failed)
        self._flush()


def _marker(delivery: _Delivery, partitions: list[TopicPartition]) -> WritableTxnMarker:
    prepared = delivery.prepared
    topics: dict[str, TopicPartitionIndexes] = {}
    for topic, partition in partitions:
        if topic not in topics:
            topics[topic] = TopicPartitionIndexes(name=topic)
        topics[topic].partition_indexes.append(partition)
    return WritableTxnMarker(
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
        transaction_result=prepared.state is TransactionState.PREPARE_COMMIT,
        topics=list(topics.values()),
        coordinator_epoch=delivery.coordinator_epoch,
        transaction_version=prepared.client_transaction_version,
    )
