"""The process tests of transactions over several brokers on a real Kafka of three nodes: what they expect is what Kafka does.

Not part of the suite: three JVMs for each test. Two of them are not asked of Kafka 4.3.1: once the dead broker is fenced and the
partition has no leader, its coordinator takes the partition for deleted, completes without its marker, and the transaction
hangs there for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import test_transactions_over_brokers as over_brokers
from tests.support.oracle.real_kafka import needs_java
from tests.support.processes.cluster import Cluster, kafka_nodes
from tests.support.processes.raw_producer import SETTINGS, prepare

pytestmark = [pytest.mark.oracle, pytest.mark.soak]

test_a_coordinator_taken_for_dead = over_brokers.test_a_coordinator_taken_for_dead_changes_nothing_when_it_wakes
test_late_requests_of_an_ended_transaction = over_brokers.test_late_requests_of_an_ended_transaction
test_offsets_of_a_group_on_another_broker = over_brokers.test_offsets_of_a_group_on_another_broker_that_dies


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes of Kafka."""
    needs_java()
    kafka = Cluster(kafka_nodes(tmp_path, *SETTINGS))
    try:
        kafka.start()
        prepare(kafka)
        yield kafka
    finally:
        kafka.kill_all()
