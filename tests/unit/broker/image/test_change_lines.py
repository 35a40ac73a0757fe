"""Log lines about a change of the metadata."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from barnabas.broker.image.change_lines import log_changes
from barnabas.broker.image.image import (
    BrokerImage,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
    difference,
)
from barnabas.work import finished

HERE = 1


def partition(leader: int, isr: Sequence[int] = (1, 2, 3), epoch: int = 1) -> PartitionImage:
    return PartitionImage(leader, epoch, 0, (1, 2, 3), tuple(isr), (bytes(16),) * 3)


def image(*topics: TopicImage, offset: int = 5, configs: object = None, brokers: object = None) -> MetadataImage:
    return MetadataImage(
        offset=offset,
        topics_by_name={topic.name: topic for topic in topics},
        topics_by_id={topic.topic_id: topic for topic in topics},
        configs=configs or {},  # type: ignore[arg-type]  # as the test gives them
        brokers=brokers or {},  # type: ignore[arg-type]  # as the test gives them
    )


def topic(name: str, *partitions: PartitionImage) -> TopicImage:
    return TopicImage(name, name.encode().ljust(16), partitions)


def broker(number: int, *, fenced: bool = False, epoch: int = 7, stops: bool = False) -> BrokerImage:
    return BrokerImage(number, epoch, bytes(16), (), (), None, fenced, stops, ())


def lines(caplog: pytest.LogCaptureFixture, old: MetadataImage, new: MetadataImage) -> list[str]:
    caplog.set_level("INFO", "barnabas")
    caplog.clear()
    delta = finished(difference(old, new))
    assert isinstance(delta, MetadataDelta)
    finished(log_changes(HERE, old, new, delta))
    return [record.getMessage() for record in caplog.records]


def test_leaderships_and_isr(caplog: pytest.LogCaptureFixture) -> None:
    led, lost = image(topic("t", partition(1))), image(topic("t", partition(2, epoch=2)))
    assert lines(caplog, lost, led) == ["Leadership is taken: topic=t partition=0 leader_epoch=1 isr=1,2,3"]
    assert lines(caplog, led, lost) == ["Leadership is lost: topic=t partition=0 leader_epoch=2 leader=2"]
    shrunk = image(topic("t", partition(1, (1, 3))))
    assert lines(caplog, led, shrunk) == ["In-sync replicas changed: topic=t partition=0 isr=1,3 before=1,2,3"]
    assert lines(caplog, lost, image(topic("t", partition(-1, (2,), epoch=3)))) == [
        "Partition has no leader: topic=t partition=0 isr=2"
    ]
    assert lines(caplog, lost, image(topic("t", partition(3, epoch=3)))) == [], "it does not concern this node"


def test_topics_are_created_and_deleted(caplog: pytest.LogCaptureFixture) -> None:
    new = image(topic("t", partition(2), partition(2)))
    assert lines(caplog, image(), new) == [
        f"Topic is created: topic=t partitions=2 replicas=3 topic_id={b't'.ljust(16).hex()}"
    ]
    assert lines(caplog, new, image()) == ["Topic is deleted: topic=t partitions=2"]


def test_topics_and_settings(caplog: pytest.LogCaptureFixture) -> None:
    old = image(topic("t", partition(2)), configs={(2, "t"): {"a": "1", "b": "2"}, (4, ""): {"secret": "x"}})
    new = image(
        topic("t", partition(2), partition(3)), configs={(2, "t"): {"a": "9"}, (4, ""): {"secret": "y"}, (2, "n"): {}}
    )
    assert lines(caplog, old, new) == [
        "Partitions are added: topic=t partitions=2 before=1",
        "Settings changed: resource=topic name=t changes=a=9,-b",
        "Settings changed: resource=broker name=<default> changes=secret",
    ]


def test_settings_of_single_brokers_that_are_stored_for_all_are_named_at_each_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jaas = "listener.name.client.plain.sasl.jaas.config"
    stored = image(configs={(4, ""): {jaas: "planted-1", "sasl.enabled.mechanisms": "PLAIN", "max.connections": "5"}})
    said = lines(caplog, MetadataImage(), stored)
    assert said[0] == (
        f"Settings of single brokers that are stored for all brokers are ignored: settings={jaas},sasl.enabled.mechanisms"
    )
    caplog.clear()
    assert lines(caplog, stored, stored) == []
    assert lines(caplog, stored, image(configs={(4, ""): {"max.connections": "5"}}))[0].startswith("Settings changed: ")


def test_brokers(caplog: pytest.LogCaptureFixture) -> None:
    for old, new, said in (
        ({}, {2: broker(2, fenced=True)}, "Broker is registered: broker=2 epoch=7 addresses="),
        ({2: broker(2, fenced=True)}, {2: broker(2)}, "Broker is unfenced: broker=2 epoch=7"),
        ({2: broker(2)}, {2: broker(2, fenced=True)}, "Broker is fenced: broker=2 epoch=7"),
        ({2: broker(2)}, {2: broker(2, stops=True)}, "Broker shuts down: broker=2 epoch=7"),
        ({2: broker(2)}, {}, "Broker is unregistered: broker=2"),
    ):
        assert lines(caplog, image(brokers=old), image(brokers=new)) == [said]


def test_the_first_image_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, MetadataImage(), image(topic("t", partition(2)), brokers={2: broker(2)})) == [
        "Metadata is loaded: offset=5 topics=1 brokers=1"
    ]
