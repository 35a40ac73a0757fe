"""Tests of the application in tally.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from sqlite3 import Connection
from typing import Any

import pytest
from tally import Tally, open_database

from barnabas.testing.clients import KitProducer
from barnabas.testing.faults.handles import Faults

pytestmark = pytest.mark.kafka(topics={"votes": 2}, config={"group.min.session.timeout.ms": 100})


@pytest.fixture
def database() -> Connection:
    return open_database(":memory:")


@pytest.fixture
def join(kafka_client_config: dict[str, Any], database: Connection) -> Callable[[str], closing[Tally]]:
    """Starts a member of the group, by its name."""
    settings = {**kafka_client_config, "session.timeout.ms": 2000, "heartbeat.interval.ms": 200}
    return lambda name: closing(Tally({**settings, "client.id": name}, database, "votes"))


def vote(producer: KitProducer, count: int) -> None:
    for number in range(count):
        producer.send("votes", key=b"tea", partition=number % 2)


def poll(*members: Tally, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline, [member.positions for member in members]
        for member in members:
            member.poll(0.05)


def counted(*members: Tally) -> int:
    return sum(counts["tea"] for member in members for counts in member.counts.values())


def stored(database: Connection) -> int:
    return sum(json.loads(counts)["tea"] for (counts,) in database.execute("SELECT counts FROM tally"))


def test_counts_are_stored_before_another_member_can_get_the_partition(
    join: Callable[[str], closing[Tally]], database: Connection, kafka_producer: KitProducer, kafka_faults: Faults
) -> None:
    vote(kafka_producer, 8)
    with join("first") as first:
        poll(first, until=lambda: counted(first) == 8)
        held = kafka_faults.on("SyncGroup", group="tally").hold()
        with join("second") as second:
            poll(first, second, until=lambda: held.hits == 1)
            assert stored(database) == 8
            held.release()
            vote(kafka_producer, 8)
            poll(first, second, until=lambda: counted(first) == counted(second) == 8)
    assert stored(database) == 16


def test_a_member_that_was_replaced_stores_nothing_old(
    join: Callable[[str], closing[Tally]], database: Connection, kafka_producer: KitProducer, kafka_faults: Faults
) -> None:
    vote(kafka_producer, 4)
    with join("replaced") as replaced:
        poll(replaced, until=lambda: counted(replaced) == 4)
        kafka_faults.on("Heartbeat", client="replaced", times=None).drop()
        vote(kafka_producer, 4)
        with join("successor") as successor:
            poll(successor, until=lambda: counted(successor) == 8)
    assert stored(database) == 8
