"""Idempotent producers while a leader or the controller is cut off from the other brokers and still serves clients.

Four librdkafka producers with default settings, acks=all and idempotence send 100 records/s each. In each cut two of them end and
new ones begin, at different moments: the first batch of a new producer id meets the cut-off leader. At the end every record
that a producer was told is written must be in the log once.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.clients.librdkafka import place_of, value_of
from tests.support.processes.cluster import Cluster
from tests.support.processes.cut_links import (  # not the kit: network namespaces
    Links,
    cluster_with_links,
    namespaces_missing,
)

pytestmark = [pytest.mark.process, pytest.mark.clients]

log = logging.getLogger(__name__)

TOPIC = "cut"
PARTITIONS = 6
PRODUCERS = 4
PACE_SECONDS = 0.01  # between two records of a producer
FLUSH_SECONDS_MAX = 60.0


class _Writer:
    """One idempotent producer in a thread of its own. `acknowledged` holds values, with the offset that was told."""

    _numbers = itertools.count()

    def __init__(self, bootstrap: str) -> None:
        self.name = f"p{next(self._numbers)}"
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.refused: list[str] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=self.name)
        self._thread.start()

    def end(self) -> None:
        """It sends nothing more; what is on its way is still waited for."""
        self._stop.set()

    def join(self) -> None:
        self._stop.set()
        self._thread.join(FLUSH_SECONDS_MAX + 30)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0})
        due = time.monotonic()
        for number in itertools.count():
            if self._stop.is_set():
                break
            producer.produce(
                TOPIC, f"{self.name}-{number}", partition=number % PARTITIONS, on_delivery=self._on_delivery
            )
            due += PACE_SECONDS
            while (left := due - time.monotonic()) > 0:
                producer.poll(left)
        producer.flush(FLUSH_SECONDS_MAX)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused.append(f"{value_of(message).decode()}: {error}")
        else:
            self.acknowledged[value_of(message).decode()] = (message.partition(), message.offset())


@dataclass
class Outcome:
    """What became of the records of one run."""

    acknowledged: int = 0
    producers: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} records of {self.producers} producers acknowledged, {len(self.lost)} lost,"
            f" {len(self.doubled)} doubled, {len(self.refused)} refused;"
            f" lost {self.lost[:20]}, doubled {self.doubled[:20]}, refused {self.refused[:5]}"
        )


def _run(
    cluster: Cluster, links: Links, seed: int, *, cuts: int, cut_seconds: float = 13.0, rest_seconds: float = 7.0
) -> Outcome:
    """Cuts the controller and the leader of a partition off, in turn; in each cut four producers end and new ones begin."""
    rng = random.Random(seed)
    cluster.create_topic(TOPIC, PARTITIONS, min__insync__replicas="2")
    writers = [_Writer(cluster.bootstrap) for _ in range(PRODUCERS)]
    ended: list[_Writer] = []
    time.sleep(rest_seconds / 2)
    for turn in range(seed, seed + cuts):
        victim = cluster.leader(TOPIC, rng.randrange(PARTITIONS)) if turn % 2 else cluster.controller()
        began = time.monotonic()
        links.cut(victim)
        for at in sorted(rng.uniform(0.0, cut_seconds - 1) for _ in range(4)):
            time.sleep(max(0.0, began + at - time.monotonic()))
            place = rng.randrange(PRODUCERS)
            writers[place].end()
            ended.append(writers[place])
            writers[place] = _Writer(cluster.bootstrap)
        time.sleep(max(0.0, began + cut_seconds - time.monotonic()))
        links.heal(victim)
        time.sleep(rest_seconds)
    everyone = [*ended, *writers]
    for writer in everyone:
        writer.end()
    for writer in everyone:
        writer.join()
    return _compare(cluster, everyone)


def _compare(cluster: Cluster, writers: list[_Writer]) -> Outcome:
    cluster.wait_in_sync(TOPIC)
    found = Counter(_everything(cluster))
    outcome = Outcome(producers=len(writers))
    for writer in writers:
        outcome.acknowledged += len(writer.acknowledged)
        outcome.lost += [f"{value}@{told}" for value, told in writer.acknowledged.items() if not found[value]]
        outcome.refused += writer.refused
    outcome.doubled = [value for value, times in found.items() if times > 1]
    return outcome


def _everything(cluster: Cluster) -> list[str]:
    """Every value of every partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "all", "enable.auto.commit": False})
    values = []
    try:
        for partition in range(PARTITIONS):
            end = _end(consumer, partition)
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            at = 0
            while at < end:
                message = consumer.poll(60)
                assert message is not None, f"{TOPIC}-{partition} ends at {at}, not at {end}"
                assert message.error() is None, f"{TOPIC}-{partition} from {at}: {message.error()}"
                values.append(value_of(message).decode())
                at = place_of(message)[2] + 1
    finally:
        consumer.close()
    return values


def _end(consumer: Consumer, partition: int) -> int:
    """Where a partition ends; asked again while its leadership moves back to a broker that was cut off."""
    deadline = time.monotonic() + 60
    while True:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
        except KafkaException:
            assert time.monotonic() < deadline, f"{TOPIC}-{partition} has no leader"
            time.sleep(0.1)
        else:
            return int(end)


def _check(outcome: Outcome, record_property: Callable[[str, object], None]) -> None:
    record_property("outcome", str(outcome))
    log.info("%s", outcome)
    assert not outcome.lost, str(outcome)
    assert not outcome.doubled, str(outcome)
    assert not outcome.refused, str(outcome)
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("namespaces", [True, False], ids=["namespaces", "kit"])
def test_a_short_cut(tmp_path: Path, namespaces: bool, record_property: Callable[[str, object], None]) -> None:
    """One cut of a leader, with sessions of 3 s. The links of the kit, where no namespaces can be made."""
    missing = namespaces_missing()
    if namespaces and missing:
        pytest.skip(missing)
    if not namespaces and not missing:
        pytest.skip("the same runs in network namespaces here")
    with cluster_with_links(tmp_path, "broker.session.timeout.ms=3000", namespaces=namespaces) as (cluster, links):
        _check(_run(cluster, links, 1, cuts=1, cut_seconds=5.0, rest_seconds=2.0), record_property)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_no_acknowledged_record_is_lost_or_doubled_over_80_seconds(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Four cuts of 13 s, of the controller and of a leader in turn, with default settings."""
    with cluster_with_links(tmp_path, namespaces=not namespaces_missing()) as (cluster, links):
        _check(_run(cluster, links, seed, cuts=4), record_property)
