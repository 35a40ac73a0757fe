"""A task of the source on three brokers, without Spark: it goes on where its leader dies."""

from __future__ import annotations

from collections.abc import Generator

import pytest

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

from barnabas.client.errors import KafkaError
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import OffsetRange
from barnabas.pipeline.reading import read_ranges
from tests.support.pipeline import topics
from tests.support.processes.cluster import Cluster
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.process


def options_of(bootstrap: str, topic: str, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "columns": "offset,value"}
    return SourceOptions.parse(given | {k.replace("__", "."): v for k, v in more.items()}, streaming=False)


def leader_of(bootstrap: str, topic: str) -> int:
    with topics._admin(bootstrap) as admin:
        return int(admin.list_topics(topic).topics[topic].partitions[0].leader)


def test_a_leader_that_dies_in_the_middle(cluster: Cluster) -> None:
    topic = topics.new_topic(cluster.bootstrap)
    sent = [b"%05d" % i + bytes(100) for i in range(20_000)]
    topics.send(cluster.bootstrap, topic, sent, batch_size="5000")
    leader = leader_of(cluster.bootstrap, topic)
    options = options_of(cluster.bootstrap, topic, kafka__max__partition__fetch__bytes="20000")
    offsets: list[int] = []
    values: list[bytes] = []
    for number, table in enumerate(read_ranges(options, [OffsetRange(topic, 0, 0, 20_000)])):
        offsets += table["offset"].to_pylist()
        values += table["value"].to_pylist()
        if number == 10:
            cluster.kill(leader)
    assert offsets == list(range(20_000))
    assert values == sent


def test_offsets_that_never_come(broker: ServedBroker) -> None:
    """A plan that goes beyond what can be read, as after an unclean election, does not wait for ever."""
    topic = topics.new_topic(broker.address)
    topics.send(broker.address, topic, [b"v"] * 10)
    options = options_of(broker.address, topic, kafkaConsumer__pollTimeoutMs="1500", kafka__fetch__max__wait__ms="100")
    read = read_ranges(options, [OffsetRange(topic, 0, 0, 20)])
    assert next(read).num_rows == 10
    with pytest.raises(KafkaError, match="offset 10 cannot be read yet: the log is readable up to offset 10"):
        next(read)
    lenient = options_of(
        broker.address,
        topic,
        kafkaConsumer__pollTimeoutMs="1500",
        kafka__fetch__max__wait__ms="100",
        failOnDataLoss="false",
    )
    assert [table.num_rows for table in read_ranges(lenient, [OffsetRange(topic, 0, 0, 20)])] == [10]


def test_a_reader_that_stops_early_leaves_nothing_open(broker: ServedBroker) -> None:
    topic = topics.new_topic(broker.address)
    topics.send(broker.address, topic, [bytes(1000)] * 200, batch_size="5000")
    options = options_of(broker.address, topic, kafka__max__partition__fetch__bytes="6000")
    for _ in range(3):
        read = read_ranges(options, [OffsetRange(topic, 0, 0, 200)])
        assert isinstance(read, Generator)
        assert next(read).num_rows
        read.close()
    assert sum(table.num_rows for table in read_ranges(options, [OffsetRange(topic, 0, 0, 200)])) == 200
