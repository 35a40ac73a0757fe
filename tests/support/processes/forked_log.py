"""A topic whose log forks: its leader was alone, dies, and a replica that lacks its last records is elected."""

from __future__ import annotations

from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster

TOPIC = "forked"
BEFORE, LOST, AFTER = ([b"%s-%d" % (name, number) for number in range(10)] for name in (b"before", b"lost", b"after"))


def produce(cluster: Cluster, values: list[bytes]) -> None:
    """Appends, acknowledged by all that are in sync."""
    with Wire(cluster.nodes[cluster.leader(TOPIC, 0)].address) as wire:
        answer = wire.produce(9, TOPIC, 0, values)
    assert answer.error_code == 0, answer
