"""The cluster's process tests on a real Kafka of three nodes: what they ask for is what Kafka does, so their harness is right.

Not part of the suite: three JVMs, and a session's time-out after each kill.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle.real_kafka import needs_java
from tests.support.processes.cluster import Cluster, kafka_nodes

pytest.importorskip("confluent_kafka")
from tests.process import test_cluster  # after the check that librdkafka is there
from tests.support.processes.copying import CopyRun  # as above
from tests.support.processes.kit_cluster import StartCluster, cluster  # as above

__all__ = ["cluster"]

STATE_TOPICS = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4")

pytestmark = [pytest.mark.oracle, pytest.mark.soak]

test_the_copy_through_a_kill_of_every_broker = test_cluster.test_the_copy_through_a_kill_of_every_broker
test_the_copy_through_a_kill_of_its_worker = test_cluster.test_the_copy_through_a_kill_of_its_worker
test_transaction_version_is_raised_under_load = test_cluster.test_transaction_version_is_raised_under_load
test_a_replica_that_lags_is_not_in_sync = test_cluster.test_a_replica_that_lags_is_not_in_sync_and_comes_back
test_below_min_insync_nothing_is_acknowledged = test_cluster.test_below_min_insync_nothing_is_acknowledged


@pytest.fixture(autouse=True)
def kafkas_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the session after a kill, and makes some twenty transactions a second."""
    monkeypatch.setattr(CopyRun, "step_seconds_max", 900.0)


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """As of the process tests, of Kafka."""
    needs_java()
    started: list[Cluster] = []

    def start(*settings: str, **how: Any) -> Cluster:
        kafka = Cluster(kafka_nodes(tmp_path, *STATE_TOPICS, *settings, **how))
        started.append(kafka)
        return kafka.start()

    yield start
    for kafka in started:
        kafka.kill_all()


def test_a_zombie_leader_accepts_nothing(cluster: Cluster) -> None:
    """Of acks=all alone: a Kafka that wakes up takes a record with acks=1 and loses it."""
    test_cluster.test_a_zombie_leader_accepts_nothing(cluster, -1)
