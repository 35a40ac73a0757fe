"""An exactly-once copy by a group in which a member joins, leaves or is killed every 200 ms while its coordinators are killed.

A member that was killed, or put out of the group while it was about to commit, must not have copied what its successor copies:
generation and member epoch fence it (KIP-447), its open transaction is ended by whoever takes its transactional id. Members are
of the bundled client, of librdkafka, or both in one group. aiokafka is not among them: its transactions name the group alone, so
nothing fences a member that has lost its partitions.

`BARNABAS_SEEDS=0:20` runs other changes than seed 1's.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from barnabas.client.types import GroupProtocol

pytest.importorskip("confluent_kafka")
from tests.support.processes.churning import (
    BROKER_SETTINGS,
    CHANGE_SECONDS,
    GROUP,
    SLOTS,
    Churn,
    commit_beginning,
)  # it has librdkafka as well
from tests.support.processes.cluster import GROUP as GROUPS
from tests.support.processes.cluster import TRANSACTION, Cluster
from tests.support.processes.copying import SOURCE, TARGET, CopyRun
from tests.support.processes.kit_cluster import KitCluster

pytestmark = pytest.mark.process

PARTITIONS = 4
RECORDS_PER_SECOND = 400
UNDISTURBED_SECONDS = 2.0  # between two kills of coordinators
BROKER_DOWN_SECONDS = 1.0
SETTLE_SECONDS_MAX = 90.0
COMMITTED_MIN = 1  # transactions under the churn: with sessions of a second there are few on a busy machine
BUSY_SECONDS_MAX = 90.0  # for the first of them, on a busy machine
SUITE, SOAK = 10.0, 60.0  # seconds of churn
SEEDS = range(*map(int, os.environ.get("BARNABAS_SEEDS", "1:2").split(":")))

CLIENTS = [("barnabas",), ("librdkafka",), ("barnabas", "librdkafka")]
PROTOCOLS: tuple[GroupProtocol, ...] = ("classic", "consumer")
GROUPS_OF = [(protocol, clients) for protocol in PROTOCOLS for clients in CLIENTS]
NAMES = [f"{protocol}-{'+'.join(clients)}" for protocol, clients in GROUPS_OF]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with KitCluster(*BROKER_SETTINGS) as cluster:
        yield cluster


def copy_through_churn(
    cluster: Cluster, folder: Path, clients: tuple[str, ...], protocol: GroupProtocol, seconds: float, seed: int
) -> dict[str, float]:
    """The churn, the kills of coordinators, the judgement; returns figures."""
    churns: list[Churn] = []

    def start() -> Churn:
        commit_beginning(cluster.bootstrap, SOURCE, PARTITIONS)
        churns.append(Churn(clients, cluster.bootstrap, SOURCE, TARGET, folder, protocol=protocol, seed=seed))
        return churns[0]

    kills = 0
    with CopyRun(cluster, folder, partitions=PARTITIONS, per_second=RECORDS_PER_SECOND, start_worker=start) as run:
        (churn,) = churns
        run.feeder.allow(int(RECORDS_PER_SECOND * seconds))
        began = time.monotonic()
        for slot in itertools.cycle(range(SLOTS)):
            time.sleep(UNDISTURBED_SECONDS)
            lasted = time.monotonic() - began
            if lasted > seconds and (len(churn.progress) >= COMMITTED_MIN or lasted > BUSY_SECONDS_MAX):
                break
            whose = (GROUP, GROUPS) if kills % 2 == 0 else (churn.transactional_id(slot), TRANSACTION)
            coordinator = cluster.wait_for(partial(cluster.coordinator, *whose), lambda node: node > 0, str(whose))
            cluster.kill(coordinator)
            kills += 1
            time.sleep(BROKER_DOWN_SECONDS)
            cluster.start_node(coordinator)
            cluster.wait_in_sync(SOURCE, TARGET, "__consumer_offsets", "__transaction_state")
        churn.stop_changes()
        lasted, committed = time.monotonic() - began, len(churn.progress)
        run.judge(seconds=SETTLE_SECONDS_MAX)
        settled = time.monotonic() - began - lasted
    changes = churn.changes["joins"] + churn.changes["leaves"] + churn.changes["kills"]
    assert changes > 0.05 * lasted / CHANGE_SECONDS, churn.changes
    assert kills > seconds // 20
    assert committed >= COMMITTED_MIN, "the copy went on under the churn"
    return {
        "seconds": round(lasted, 1),
        **churn.changes,
        "coordinators killed": kills,
        "committed": committed,
        "aborted": churn.aborted,
        "settled after": round(settled, 1),
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ten_seconds(cluster: Cluster, tmp_path: Path, protocol: GroupProtocol, seed: int) -> None:
    """Members of both clients; the soak has groups of one client, too."""
    copy_through_churn(cluster, tmp_path, CLIENTS[-1], protocol, SUITE, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("protocol", "clients"), GROUPS_OF, ids=NAMES)
def test_a_minute(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    protocol: GroupProtocol,
    clients: tuple[str, ...],
    seed: int,
) -> None:
    figures = copy_through_churn(cluster, tmp_path, clients, protocol, SOAK, seed)
    with capsys.disabled():
        sys.stdout.write(f"{protocol} {'+'.join(clients)} {json.dumps(figures)}\n")
