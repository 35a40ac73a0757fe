"""kafka.server:type=BrokerTopicMetrics series, by topic and in all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from barnabas.broker.metrics.families import counter
from barnabas.broker.metrics.line_table import LineTable, Series, labels_text
from barnabas.broker.replica.core.traffic import Traffic

TOPICS_PER_SLICE: Final = 1_000
ALL: Final = ""  # no topic has this name

# In the order of TopicTraffic.values.
TOPIC_SERIES: Final = tuple(
    Series(f"kafka_server_brokertopicmetrics_{name}_total", "counter", doc)
    for name, doc in (
        ("messagesin", "Records of batches appended as leader; a batch that a producer repeats counts once."),
        ("bytesin", "Bytes of batches appended as leader, by clients and by coordinators."),
        ("bytesout", "Bytes of records sent to consumers."),
        ("bytesrejected", "Bytes of batches refused because they are too large."),
        ("totalproducerequests", "Batches of answered Produce requests, and those of coordinators."),
        ("failedproducerequests", "Batches refused with an error that Kafka does not expect."),
        ("totalfetchrequests", "Partitions read for answered Fetch requests."),
        ("failedfetchrequests", "Partitions that could not be read, with an error that Kafka does not expect."),
    )
)


class TopicSeries:
    """Collector of this module's series."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._table: LineTable[str] = LineTable(
            TOPIC_SERIES, lambda topic: labels_text(topic=topic) if topic else labels_text()
        )
        self._seen: dict[str, tuple[object, int, int]] = {}

    def collect(self) -> Iterator[Metric | LineTable[str] | None]:
        traffic, table, seen = self._traffic, self._table, self._seen
        of_all = traffic.gone()  # first: a topic that is deleted while this runs must not count twice
        for at, (topic, counts) in enumerate(list(traffic.topics.items())):
            values = counts.values()
            of_all = tuple(map(sum, zip(of_all, values, strict=True)))
            state = (counts, counts.produce_requests, counts.fetch_requests)  # one of them changes with every other
            if seen.get(topic) != state:
                seen[topic] = state
                table.put(topic, values)
            if at % TOPICS_PER_SLICE == TOPICS_PER_SLICE - 1:
                yield None
        for topic in [each for each in seen if each not in traffic.topics]:
            del seen[topic]
            table.drop(topic)
        table.put(ALL, of_all)
        yield table
        for name, doc, value in (
            ("replicationbytesin", "Bytes of records fetched from leaders.", of_all[-2]),
            ("replicationbytesout", "Bytes of records sent to followers.", of_all[-1]),
        ):
            yield counter(f"kafka_server_brokertopicmetrics_{name}_total", doc, value)
