"""A topic whose log forks: its leader was alone, dies, and a replica that lacks its last records is elected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster
from tests.support.processes.kit_cluster import KitCluster

TOPIC = "forked"


BEFORE, LOST, AFTER = ([b"%s-%d" % (name, number) for number in range(10)] for name in (b"before", b"lost", b"after"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes. Sessions are long: a node that is alive and slow must not lose its leadership, and with it records."""
    with KitCluster() as cluster:
        yield cluster


def produce(cluster: Cluster, values: list[bytes]) -> None:
    """Appends, acknowledged by all that are in sync."""
    with Wire(cluster.nodes[cluster.leader(TOPIC, 0)].address) as wire:
        answer = wire.produce(9, TOPIC, 0, values)
    assert answer.error_code == 0, answer
