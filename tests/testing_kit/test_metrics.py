"""The metrics of three brokers: every name that known boards ask for, and alerts whose cause is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.client import Consumer, Producer
from barnabas.testing import Cluster
from tests.support.broker.board_names import ALERTED, KAFKA_BOARD, KRAFT_BOARD, NOT_SERVED, WATCHED
from tests.support.broker.cluster_scrapes import total, until
from tests.support.broker.scrapes import Scrape

RECORDS, SIZE = 60, 500


@pytest.fixture
def kafka() -> Iterator[Cluster]:
    config = {
        "metrics.listen": "127.0.0.1:0",
        "min.insync.replicas": 2,
        "broker.session.timeout.ms": 6_000,
    }  # a busy machine fences no broker
    with Cluster(brokers=3, config=config, topics={"orders": 6}) as cluster:
        yield cluster


async def traffic(kafka: Cluster) -> None:
    async with Producer(bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=True) as producer:
        for number in range(RECORDS):
            await producer.send_and_wait("orders", bytes(SIZE), partition=number % 6)
    async with Consumer(
        "orders", bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        for _ in range(RECORDS):
            await consumer.getone()


def is_settled(every: list[Scrape]) -> bool:
    """All followers have copied all records, and the brokers know each other, their leaders and their controller."""
    copied, written = "kafka_log_log_size", "kafka_server_brokertopicmetrics_bytesin_total"
    states = [each.labels("kafka_server_raftmetrics_current_state", "current_state") for each in every]
    return (
        total(every, copied, topic="orders") == 3 * total(every, written, topic="orders") > 0
        and total(every, "kafka_server_replicamanager_leadercount")
        == total(every, "kafka_cluster_partition_replicascount") / 3
        and total(every, "kafka_controller_kafkacontroller_activecontrollercount") == 1
        and {each.value("kafka_controller_kafkacontroller_activebrokercount") for each in every} == {3}
        and sorted(next(iter(state)) for state in states) == ["follower", "follower", "leader"]
        and len({each.value("kafka_server_raftmetrics_current_leader") for each in every}) == 1
    )


async def test_every_series_that_the_boards_ask_for(kafka: Cluster) -> None:
    await traffic(kafka)
    every = until(kafka, (1, 2, 3), is_settled)
    for name, labels in (KAFKA_BOARD | KRAFT_BOARD | ALERTED | WATCHED).items():
        for each in every:
            assert name in each.names, name
            for label in labels:
                assert each.labels(name, label) - {""}, (name, label)
    assert not NOT_SERVED & {name for each in every for name in each.names}

    name = "kafka_server_brokertopicmetrics_messagesin_total"
    assert total(every, name, topic="orders") == RECORDS
    written = total(every, "kafka_server_brokertopicmetrics_bytesin_total", topic="orders")
    assert RECORDS * SIZE < written < RECORDS * 650
    # A consumer may fetch records again, after a partition has moved.
    assert total(every, "kafka_server_brokertopicmetrics_bytesout_total", topic="orders") >= written
    assert sum(each.value("kafka_server_brokertopicmetrics_replicationbytesin_total") for each in every) >= written * 2
    assert total(every, "kafka_server_raftchannelmetrics_incoming_byte_total") > 1_000
    assert total(every, "kafka_server_raftchannelmetrics_response_total") > 0


def test_alerts_fire_when_their_cause_is_made(kafka: Cluster) -> None:
    """One broker of three is killed and comes back; then a majority is killed."""
    kafka.create_topic("pair", 9, replication_factor=2)  # needs both in sync
    kafka.create_topic("single", 9, replication_factor=1)
    manager, controller = "kafka_server_replicamanager_", "kafka_controller_kafkacontroller_"
    fine = {
        f"{manager}underreplicatedpartitions": 0,
        f"{manager}underminisrpartitioncount": 0,
        f"{controller}offlinepartitionscount": 0,
        f"{controller}fencedbrokercount": 0,
        f"{controller}activecontrollercount": 1,
    }

    def is_fine(found: list[Scrape]) -> bool:
        return all(total(found, name) == value for name, value in fine.items())

    until(kafka, (1, 2, 3), is_fine)
    kafka.kill(3)

    def alerts(found: list[Scrape]) -> bool:
        return (
            total(found, f"{manager}underreplicatedpartitions") >= 6
            and total(found, f"{manager}underminisrpartitioncount") > 0
            and total(found, f"{manager}atminisrpartitioncount") >= 6
            and all(each.value(f"{controller}offlinepartitionscount") > 0 for each in found)
            and all(each.value(f"{controller}fencedbrokercount") == 1 for each in found)
            and total(found, f"{controller}activecontrollercount") == 1
        )

    offline = until(kafka, (1, 2), alerts)[0].value(f"{controller}offlinepartitionscount")
    kafka.restart(3)
    recovered = until(kafka, (1, 2, 3), is_fine)
    assert total(recovered, f"{manager}isrexpands_total") > 0
    # The killed broker may have lost records that it alone had: its election is not clean (KIP-966, last known leader).
    for survivor in recovered[:2]:
        assert survivor.value("kafka_controller_controllerstats_uncleanleaderelections_total") == offline
    kafka.kill(2)
    kafka.kill(3)
    until(kafka, (1,), lambda found: total(found, f"{controller}activecontrollercount") == 0)
