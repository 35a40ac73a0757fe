"""Routing of records to partitions and their queues. Only `open` waits."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from barnabas.client.errors import BufferExhausted, ClientClosed, IllegalState, InvalidTopic, error_for
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.metadata import ClusterMetadata, TopicInfo
from barnabas.client.net.failures import check_login
from barnabas.client.producer.core.batching import Accumulator, PartitionQueue
from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.core.murmur2 import partition_for_key
from barnabas.client.producer.delivery import Delivery
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.ports import Rng


class StickyPartitioner:
    """Draws another partition after `batch_size` bytes, one with few waiting batches more likely."""

    __slots__ = ("_batch_size", "_rng", "current", "room_bytes")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self._batch_size = batch_size
        self._rng = rng
        self.current = -1  # −1 before the first choice
        self.room_bytes = 0  # bytes left for `current`; the caller subtracts each record. If not positive, another partition is chosen

    def choose(self, available: Sequence[int], waiting: Sequence[int]) -> int:
        """The partition to use now; `waiting` counts the waiting batches of each of the `available` partitions (≥ 1)."""
        if self.room_bytes <= 0 or self.current not in available:
            self.room_bytes = self._batch_size
            self.current = self._draw(available, waiting)
        return self.current

    def _draw(self, available: Sequence[int], waiting: Sequence[int]) -> int:
        # KIP-794: the weight of a partition is longest queue + 1 − its own queue, so an empty queue is most likely.
        top = max(waiting) + 1
        total = sum(top - length for length in waiting)
        pick = self._rng.randrange(total)
        for partition, length in zip(available, waiting, strict=True):
            pick -= top - length
            if pick < 0:
                return partition
        return available[-1]


class TopicRoute:
    """The partitions of one topic."""

    __slots__ = ("_accumulator", "_chosen", "_chosen_by", "_metadata", "_queues", "_sticky", "topic")

    def __init__(
        self, topic: str, metadata: ClusterMetadata, accumulator: Accumulator, sticky: StickyPartitioner
    ) -> None:
        self.topic = topic
        self._metadata = metadata
        self._accumulator = accumulator
        self._sticky = sticky
        self._queues: dict[int, PartitionQueue] = {}
        self._chosen: PartitionQueue | None = None  # for records without a key
        # the metadata at the time of the choice; new metadata causes a new choice
        self._chosen_by: TopicInfo | None = None

    def queue(self, partition: int) -> PartitionQueue:
        """Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION)."""
        if type(partition) is not int:
            try:
                partition = operator.index(partition)  # of another library (NumPy)
            except TypeError:
                raise IllegalState(f"a partition must be an int, not {partition!r}", topic=self.topic) from None
        found = self._queues.get(partition)
        if found is not None:
            return found
        count = self._metadata.partition_count(self.topic)
        if not 0 <= partition < count:
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"the topic has partitions 0 to {count - 1}",
                topic=self.topic,
                partition=partition,
            )
        queue = self._queues[partition] = self._accumulator.queue(TopicPartition(self.topic, partition))
        return queue

    def choose(self, key: bytes | None, size_bytes: int) -> PartitionQueue:
        info = self._metadata.topics.get(self.topic)
        if info is None or not info.partitions:
            raise BufferExhausted("the topic no longer exists", topic=self.topic)
        if key is not None:
            return self.queue(partition_for_key(key, len(info.partitions)))
        sticky = self._sticky
        chosen = self._chosen
        if chosen is None or sticky.room_bytes <= 0 or info is not self._chosen_by:
            available: Sequence[int] = info.available or range(len(info.partitions))
            queues = self._queues
            waiting = [len(q.queue) if (q := queues.get(p)) else 0 for p in available]
            chosen = self._chosen = self.queue(sticky.choose(available, waiting))
            self._chosen_by = info
        sticky.room_bytes -= size_bytes
        return chosen


class Routing:
    """The topics of one producer."""

    def __init__(
        self, cluster: NetworkClient, accumulator: Accumulator, delivery: Delivery, config: ProducerConfig
    ) -> None:
        self.routes: dict[str, TopicRoute] = {}
        self.buffer_memory = config.buffer_memory
        self._cluster = cluster
        self._accumulator = accumulator
        self._delivery = delivery
        self._batch_size = config.max_batch_size
        self._max_block_ms = config.max_block_ms

    async def open(self, topic: str) -> TopicRoute:
        """Waits for a topic's metadata and for room in the buffer; returns its route.

        Raises:
            AuthenticationFailed: the brokers reject this client.
            BufferExhausted: no metadata or no room within `max_block_ms`.
            KafkaError: the cluster refused the metadata of the topic.
            ClientClosed: the producer was closed during the wait.
        """
        if not isinstance(topic, str):
            raise InvalidTopic(f"a topic name must be a str, not {topic!r}")
        clock = self._cluster.clock
        deadline = clock.monotonic_ms() + self._max_block_ms
        metadata = self._cluster.metadata
        self._cluster.add_topics([topic])
        while not metadata.partition_count(topic):
            info = metadata.topics.get(topic)
            if info is not None and not info.error.retriable and info.error is not ErrorCode.NONE:
                raise error_for(info.error, topic=topic)
            if clock.monotonic_ms() >= deadline:
                cause = error_for(info.error, topic=topic) if info is not None else self._cluster.error
                why = cause.message if cause is not None else "no answer"
                if info is not None and info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    why += "; create the topic first (the brokers do not create topics automatically)"
                text = f"no metadata within max_block_ms={self._max_block_ms}: {why}"
                raise BufferExhausted(text, topic=topic) from cause
            check_login(self._cluster.connections())
            await self._cluster.changed(deadline)
            self._check_open()
        route = self.routes.get(topic)
        if route is None:
            sticky = StickyPartitioner(self._batch_size, self._cluster.rng)
            route = self.routes[topic] = TopicRoute(topic, metadata, self._accumulator, sticky)
        while self._accumulator.bytes_held > self.buffer_memory:
            self._delivery.wake()
            if not await self._delivery.progress(deadline):
                raise BufferExhausted(f"buffer_memory={self.buffer_memory} stayed full for max_block_ms", topic=topic)
            self._check_open()
        return route

    def _check_open(self) -> None:
        if self._delivery.closed:
            raise ClientClosed("the producer is closed")
