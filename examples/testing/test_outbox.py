"""Tests of the application in outbox.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from sqlite3 import Connection
from typing import Any

import pytest
from outbox import apply_once, open_database, place_order, relay

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer
from barnabas.testing.faults.handles import Faults


@pytest.fixture
def database() -> Iterator[Connection]:
    with closing(open_database(":memory:")) as database:
        yield database


def read(consumer: KitConsumer, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """The ids and values of the first records."""
    consumer.subscribe(topic)
    return [(dict(each.headers)["id"] or b"", each.value) for each in consumer.take(count)]


def test_orders_are_accepted_while_kafka_stands_still(
    kafka: Cluster,
    kafka_topic: str,
    kafka_client_config: dict[str, Any],
    kafka_consumer: KitConsumer,
    database: Connection,
) -> None:
    kafka.pause(1)
    place_order(database, "tea")
    assert relay(kafka_client_config, database, kafka_topic, timeout_s=0.5) == 1
    place_order(database, "milk")
    kafka.resume(1)
    assert relay(kafka_client_config, database, kafka_topic) == 0
    values = [value for _, value in read(kafka_consumer, kafka_topic, 2)]
    assert values == [b"tea", b"milk"]


def test_an_event_whose_acknowledgements_are_lost_is_sent_again_and_applied_once(
    kafka_topic: str,
    kafka_faults: Faults,
    kafka_client_config: dict[str, Any],
    kafka_consumer: KitConsumer,
    database: Connection,
) -> None:
    place_order(database, "tea")
    lost = kafka_faults.on("Produce", topic=kafka_topic, times=None).disconnect(at="applied")
    impatient = {
        **kafka_client_config,
        "retries": 1,
    }  # a count, because a time may end before the first request is sent
    assert relay(impatient, database, kafka_topic) == 1
    assert lost.hits >= 1
    lost.remove()
    assert relay(kafka_client_config, database, kafka_topic) == 0
    events = read(kafka_consumer, kafka_topic, 2)
    assert events == [(b"1", b"tea")] * 2
    for event in events:
        apply_once(database, *event)
    assert database.execute("SELECT id, item FROM applied").fetchall() == [(1, "tea")]
