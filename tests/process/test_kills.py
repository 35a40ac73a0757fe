"""Random schedules of kills: one broker, two, all, the same one again, the controller and a leader together.

Under an idempotent producer, a group and transactions. `BARNABAS_SEED=7 pytest -m soak tests/process/test_kills.py` runs another
schedule. In the suite: tests/simulation/test_kill_schedules.py, and the kills of test_demo.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")
from tests.support.processes.cluster import Cluster  # after the check that librdkafka is there
from tests.support.processes.kills import Killing, killed_copy
from tests.support.processes.kit_cluster import KitCluster
from tests.support.simulation.kill_schedule import schedule

pytestmark = pytest.mark.process

SETTINGS = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4", "min.insync.replicas=2")
SEED = int(os.environ.get("BARNABAS_SEED", "1"))
GAP_SECONDS_MAX = 3.0  # with a majority alive and in sync


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with KitCluster(*SETTINGS, internal_topics=False) as cluster:
        yield cluster


@pytest.mark.soak
@pytest.mark.parametrize("client", ["librdkafka", "barnabas"])
def test_forty_kills(cluster: Cluster, tmp_path: Path, client: str) -> None:
    """Nothing acknowledged is lost or repeated, and no kill waits for a session."""
    with killed_copy(cluster, tmp_path, client) as run:
        gaps = Killing(run, seed=SEED).carry_out(schedule(SEED, 40))
        run.judge()
    for node in cluster.nodes.values():
        assert "its session has timed out" not in node.log(), str(gaps)
    assert gaps.seconds()[-1] < GAP_SECONDS_MAX, str(gaps)
    assert gaps.below(1.0) >= 0.95, str(gaps)
