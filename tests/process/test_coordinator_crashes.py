"""Crash matrix over brokers: the coordinator is killed at each log write of a transaction's end, some of them half done.

Its partitions have leaders on all three brokers, so that between PREPARE and COMPLETE there is a death before, between and after
the markers. The producer asks again, of whoever coordinates then; each transaction is seen whole or not at all in every partition,
by the outcome that was answered, and nothing hangs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from operator import eq

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import ElectLeadersRequest
from barnabas.testing.world.broker_disk import DiskFault
from barnabas.testing.world.disks import PartDone
from tests.support.processes.cluster import Node
from tests.support.processes.kit_cluster import KitCluster
from tests.support.processes.raw_producer import (
    PARTITIONS,
    SETTINGS,
    TV2,
    Producer,
    is_stable,
    named,
    prepare,
    read_committed,
)

pytestmark = pytest.mark.usefixtures("no_errors")

PREFERRED = 0  # of the elections
POINTS = [(1, "whole"), (2, "half"), (3, "whole"), (5, "half"), (6, "whole"), (8, "whole")]
ALL_POINTS = [(at, how) for at in range(16) for how in ("whole", "half")]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[KitCluster]:
    """Three brokers, with sessions of six seconds. The parameter is their mode."""
    with KitCluster(*SETTINGS, mode=request.param) as cluster:
        prepare(cluster)
        yield cluster


def armed(cluster: KitCluster, node_id: int, at: int, how: str) -> DiskFault:
    """Lets `at` log writes of this node pass; the next one kills it."""
    done: PartDone = "half" if how == "half" else "nothing"
    return cluster.kafka.disk(node_id).kill("write", nth=at + 1, done=done, path="*.log", strict=False)


def cross(cluster: KitCluster, points: list[tuple[int, str]]) -> None:
    """One transaction a point, ended while its coordinator dies there."""
    expected: list[bytes] = []
    crashes = 0
    for number, (at, how) in enumerate(points):
        coordinator = 1 + number % 3
        cluster.wait_in_sync("safe", "__transaction_state")
        balanced = cluster.ask(
            ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=10_000), 2
        )
        assert balanced.error_code == 0, balanced
        producer = Producer(cluster, named(cluster, partial(eq, coordinator), f"p{number}"), TV2)
        producer.init()
        value = f"{number} {at} {how}".encode()
        for partition in range(PARTITIONS):
            assert producer.produce("safe", partition, value) is ErrorCode.NONE
        commit = number % 3 != 1
        kill = armed(cluster, coordinator, at, how)
        assert producer.end(commit=commit) is ErrorCode.NONE
        producer.await_state("CompleteCommit" if commit else "CompleteAbort")
        if commit:
            expected.append(value)
        deadline = time.monotonic() + 0.5  # what follows the answer: the last writes of a follower
        while cluster.nodes[coordinator].alive and time.monotonic() < deadline:
            time.sleep(0.01)
        died = not cluster.nodes[coordinator].alive
        if not died:
            kill.remove()

        def is_over(partition: int, node: Node = cluster.nodes[coordinator]) -> bool:
            nonlocal died
            died = died or not node.alive  # on a busy machine it dies later
            if not node.alive:
                cluster.start_node(node.node_id)
            return is_stable(cluster, partition)

        for partition in range(PARTITIONS):
            cluster.wait_until(partial(is_over, partition), "nothing hangs")
            assert read_committed(cluster, "safe", partition) == expected, (partition, at, how)
        crashes += died
    assert crashes >= len(points) // 2, f"only {crashes} crashes at {points}"


@pytest.mark.parametrize("cluster", ["thread"], indirect=True)
def test_the_coordinator_dies_within_the_end_of_a_transaction(cluster: KitCluster) -> None:
    cross(cluster, POINTS)


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("cluster", ["process"], indirect=True)
def test_the_coordinator_dies_at_every_write_of_the_end_of_a_transaction(cluster: KitCluster) -> None:
    cross(cluster, ALL_POINTS)
