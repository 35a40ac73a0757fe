"""kafka.controller series: state of the cluster, elections, and latencies of the active controller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import NO_LEADER, MetadataDelta, MetadataImage, TopicImage
from barnabas.broker.metrics.families import counter, gauge, quantile_family
from barnabas.broker.metrics.histogram import NS_PER_MS, Histogram
from barnabas.work import Work

TOPICS_PER_SLICE: Final = 1_000  # a partition of a topic with another image counts as a topic
PREFIX: Final = "kafka_controller_kafkacontroller_"


class ControllerSeries:
    """Recounts a topic only if its image is another one."""

    def __init__(self, controller: QuorumController, current: CurrentImage) -> None:
        self._controller = controller
        self._current = current
        self._image: MetadataImage | None = None  # of the counts
        self._topics: dict[bytes, tuple[TopicImage, int, int]] = {}  # with its offline and its imbalanced partitions
        self._partitions = self._offline = self._imbalanced = 0
        self._queue_times = Histogram()
        self._processing_times = Histogram()
        self.commit_latency = Histogram()  # from the append of metadata records to their publication here
        self._unclean_elections = 0
        self._became_active = 0
        self._was_active = False

    # -- events

    def on_decision(self, queued_ms: int, took_ms: int) -> None:
        self._queue_times.record(queued_ms * NS_PER_MS)
        self._processing_times.record(took_ms * NS_PER_MS)

    def on_published(self, latency_ms: int) -> None:
        self.commit_latency.record(latency_ms * NS_PER_MS)

    def on_tick(self, _now_ms: int) -> None:
        """Notices that the controller became active."""
        active = self._controller.active
        self._became_active += active and not self._was_active
        self._was_active = active

    def turn(self) -> None:
        for histogram in (self._queue_times, self._processing_times, self.commit_latency):
            histogram.turn()

    def follow(self, _image: MetadataImage, delta: MetadataDelta) -> Work:
        """Counts the unclean elections before the next image."""
        self._unclean_elections += delta.unclean_elections
        yield 1

    # -- collectors

    def collect(self) -> Iterator[Metric | None]:
        image = self._current.image
        if image is not self._image:
            yield from self._count(image)
        active = self._controller.active
        fenced = sum(broker.fenced for broker in image.brokers.values())
        for name, doc, value in (
            ("activecontrollercount", "1 on the active controller, else 0.", int(active)),
            ("activebrokercount", "Registered brokers that are not fenced.", len(image.brokers) - fenced),
            ("fencedbrokercount", "Registered brokers that are fenced.", fenced),
            ("globaltopiccount", "Topics of the cluster.", len(image.topics_by_id)),
            ("globalpartitioncount", "Partitions of the cluster.", self._partitions),
            ("offlinepartitionscount", "Partitions of the cluster without a leader.", self._offline),
            (
                "preferredreplicaimbalancecount",
                "Partitions whose leader is not their preferred replica.",
                self._imbalanced,
            ),
            ("metadataerrorcount", "Errors of metadata records: always 0, a node stops at the first one.", 0),
            ("lastappliedrecordoffset", "Offset of the last record in the published image.", image.offset),
            ("lastappliedrecordtimestamp", "The timestamp of that record, in ms since the epoch.", image.timestamp_ms),
        ):
            yield gauge(PREFIX + name, doc, value)
        yield counter(
            f"{PREFIX}newactivecontrollerscount_total", "How often this node became active.", self._became_active
        )
        yield counter(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "Elections of a leader that was not in sync.",
            self._unclean_elections,
        )
        for name, doc, histogram in (
            ("eventqueuetimems", "How long decisions waited, in milliseconds.", self._queue_times),
            ("eventqueueprocessingtimems", "How long decisions took, in milliseconds.", self._processing_times),
        ):
            yield from quantile_family(f"kafka_controller_controllereventmanager_{name}", doc, "", {"": histogram})

    def _count(self, image: MetadataImage) -> Iterator[None]:
        topics = self._topics
        partitions = offline = imbalanced = cost = 0
        for topic_id, topic in image.topics_by_id.items():
            found = topics.get(topic_id)
            if found is None or found[0] is not topic:
                found = topics[topic_id] = (topic, *_counts(topic))
                cost += len(topic.partitions)
            partitions += len(topic.partitions)
            offline += found[1]
            imbalanced += found[2]
            cost += 1
            if cost >= TOPICS_PER_SLICE:
                cost = 0
                yield None
        for topic_id in [each for each in topics if each not in image.topics_by_id]:
            del topics[topic_id]
        self._partitions, self._offline, self._imbalanced, self._image = partitions, offline, imbalanced, image


def _counts(topic: TopicImage) -> tuple[int, int]:
    """Partitions without a leader, and those led by another than their preferred replica."""
    offline = sum([each.leader == NO_LEADER for each in topic.partitions])
    return offline, sum([bool(each.replicas) and each.leader != each.replicas[0] for each in topic.partitions])
