"""Random schedules of kills: one broker, two, all, the same one again, the controller and a leader together.

Under an idempotent producer, a group and transactions. `BARNABAS_SEED=7 pytest -m soak tests/process/test_kills.py` runs another
schedule. What a kill costs is asserted by the soak only, which wants a machine without other work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")
from tests.support.processes.cluster import Cluster  # after the check that librdkafka is there
from tests.support.processes.kills import Gaps, Killing, killed_copy
from tests.support.processes.kit_cluster import KitCluster
from tests.support.simulation.kill_schedule import Kill, schedule

pytestmark = pytest.mark.process

SETTINGS = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4", "min.insync.replicas=2")
SEED = int(os.environ.get("BARNABAS_SEED", "1"))
GAP_SECONDS_MAX = 3.0  # with a majority alive and in sync
EACH_ONCE = ("one", "again", "controller and leader", "all")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with KitCluster(*SETTINGS, internal_topics=False) as cluster:
        yield cluster


def kill_by(cluster: Cluster, folder: Path, kills: list[Kill], client: str) -> Gaps:
    """Carries a schedule out; nothing acknowledged may be lost or repeated, and no kill may wait for a session."""
    with killed_copy(cluster, folder, client) as run:
        gaps = Killing(run, seed=SEED).carry_out(kills)
        run.judge()
    for node in cluster.nodes.values():
        assert "its session has timed out" not in node.log(), str(gaps)
    return gaps


def test_each_kind_of_kill(cluster: Cluster, tmp_path: Path) -> None:
    kills = schedule(SEED, len(EACH_ONCE), kinds=EACH_ONCE, again_seconds_max=2.0)
    kill_by(cluster, tmp_path, kills, "barnabas")


@pytest.mark.soak
@pytest.mark.parametrize("client", ["librdkafka", "barnabas"])
def test_forty_kills(cluster: Cluster, tmp_path: Path, client: str) -> None:
    gaps = kill_by(cluster, tmp_path, schedule(SEED, 40), client)
    assert gaps.seconds()[-1] < GAP_SECONDS_MAX, str(gaps)
    assert gaps.below(1.0) >= 0.95, str(gaps)
