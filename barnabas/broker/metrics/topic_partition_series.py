"""Topic and partition series under kafka_exporter's names: offsets, leaders, replicas; and the brokers of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from barnabas.broker.metrics.column_table import ColumnTable
from barnabas.broker.metrics.exposition import Collected
from barnabas.broker.metrics.line_table import LineTable, Series, labels_text, partition_labels
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.replicas import Replicas

PAGES_PER_SLICE: Final = 4
CHECKED_PER_SLICE: Final = 1_500  # topics; a changed one counts as CHANGED_COST of them
CHANGED_COST: Final = 10

TOPIC_SERIES: Final = (Series("kafka_topic_partitions", "gauge", "Partitions of the topic."),)
TOPIC_PARTITIONS: Final = tuple(
    Series(f"kafka_topic_partition_{name}", "gauge", doc)
    for name, doc in (
        ("current_offset", "The high watermark: the offset of the next record that consumers will read."),
        ("oldest_offset", "The first offset of the log."),
        ("leader", "The id of the leader; -1 without one."),
        ("leader_is_preferred", "1 if the first one of the replicas leads."),
        ("replicas", "Replicas."),
        ("in_sync_replica", "Replicas in sync."),
        ("under_replicated_partition", "1 if replicas are not in sync."),
    )
)
CURRENT_OFFSET, OLDEST_OFFSET, FIRST_OF_STATE = range(3)


class TopicPartitionSeries:
    """One node exports each series, so that a sum over all nodes counts everything once: the leader of a partition, else the active
    controller.

    Topics and brokers come from the active controller. Without a leader `leader` is -1, without offsets.
    """

    def __init__(self, replicas: Replicas, current: CurrentImage, controller: QuorumController | None) -> None:
        self._replicas = replicas
        self._current = current
        self._controller = controller
        self._leaderless: LineTable[tuple[str, int]] = LineTable(TOPIC_PARTITIONS, lambda key: partition_labels(*key))
        self._led: ColumnTable[Replica] = ColumnTable(
            TOPIC_PARTITIONS, lambda replica: partition_labels(replica.topic, replica.partition), self._leaderless
        )
        self._topics: LineTable[str] = LineTable(TOPIC_SERIES, lambda topic: labels_text(topic=topic))
        self._image: MetadataImage | None = None  # of the rows of the active controller
        self._known: dict[bytes, tuple[TopicImage, list[int]]] = {}  # with the partitions that have no leader

    def collect(self) -> Iterator[Collected]:
        if self._controller is not None and self._controller.active:
            image = self._current.image
            if image is not self._image:
                yield from self._follow(image)
            yield self._topics
            yield from _brokers(image)
        elif self._image is not None:
            self._image = None
            for topic, leaderless in self._known.values():
                self._forget(topic, leaderless)
            self._known = {}
        yield from self._lead()
        yield self._led

    def _lead(self) -> Iterator[None]:
        """Updates the rows of led partitions.

        A replica learns of a change before the image is published, and the active controller's rows are as old as its last image: a
        partition with a row there gets none here, because Prometheus refuses all samples if one is repeated.
        """
        led = [each for each in self._replicas.all() if each.leader_id == each.node_id and not each.failed]
        if self._leaderless:
            led = [each for each in led if (each.topic, each.partition) not in self._leaderless]
        yield None
        yield from self._led.follow(led)
        yield None
        for count, page in enumerate(self._led.pages, 1):
            replicas = page.keys
            page.put(CURRENT_OFFSET, [each.high_watermark for each in replicas])
            page.put(OLDEST_OFFSET, [each.log.log_start_offset for each in replicas])
            states = [each.in_sync.partition_epoch for each in replicas]
            if page.known != states:
                page.known = states
                rows = [self._row(each) for each in replicas]
                for number, column in enumerate(zip(*rows, strict=True), FIRST_OF_STATE):
                    page.put(number, list(column))
            if count % PAGES_PER_SLICE == 0:
                yield None

    def _row(self, replica: Replica) -> tuple[int, ...]:
        """Values of a led partition that its state decides, in the order of TOPIC_PARTITIONS."""
        image = self._current.image.partition(replica.topic, replica.partition)
        preferred = image is not None and image.replicas[:1] == (replica.node_id,)
        replicas, in_sync = len(replica.in_sync.followers) + 1, len(replica.isr)
        return replica.node_id, int(preferred), replicas, in_sync, int(in_sync < replicas)

    def _follow(self, image: MetadataImage) -> Iterator[None]:
        known, cost = self._known, 0
        for topic_id, topic in image.topics_by_id.items():
            found = known.get(topic_id)
            if found is None or found[0] is not topic:
                if found is not None:
                    self._forget(*found)
                leaderless = [at for at, each in enumerate(topic.partitions) if each.leader == NO_LEADER]
                known[topic_id] = (topic, leaderless)
                self._topics.put(topic.name, (len(topic.partitions),))
                for number in leaderless:
                    self._leaderless.put((topic.name, number), _leaderless_row(topic.partitions[number]))
                cost += len(topic.partitions) + CHANGED_COST * (1 + len(leaderless))
            cost += 1
            if cost >= CHECKED_PER_SLICE:
                cost = 0
                yield None
        for topic_id in [each for each in known if each not in image.topics_by_id]:
            topic, leaderless = known.pop(topic_id)
            self._forget(topic, leaderless)
            if image.topic(topic.name) is None:
                self._topics.drop(topic.name)
        self._image = image

    def _forget(self, topic: TopicImage, leaderless: list[int]) -> None:
        for number in leaderless:
            self._leaderless.drop((topic.name, number))


def _leaderless_row(partition: PartitionImage) -> tuple[int | None, ...]:
    replicas, in_sync = len(partition.replicas), len(partition.isr)
    return None, None, NO_LEADER, 0, replicas, in_sync, int(in_sync < replicas)


def _brokers(image: MetadataImage) -> Iterator[Metric]:
    alive = image.alive_brokers()
    yield GaugeMetricFamily("kafka_brokers", "Registered brokers that are not fenced.", len(alive))
    family = GaugeMetricFamily("kafka_broker_info", "1 for each broker that is not fenced.", labels=["id", "address"])
    for broker in alive:
        if broker.end_points:
            point = broker.end_points[0]
            family.add_metric((str(broker.broker_id), f"{point.host}:{point.port}"), 1)
    yield family
