"""Three brokers of a simulated cluster, and whether they agree."""

from __future__ import annotations

import asyncio

from tests.support.simulation.cluster import ClusterBroker, names
from tests.support.simulation.workload import Broker

FLUSH = {"log.flush.interval.messages": "1"}
STATE_TOPICS = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
CONVERGE_SECONDS = 60


def make_brokers(**settings: str) -> dict[str, Broker]:
    return {name: ClusterBroker(number, **STATE_TOPICS, **settings) for number, name in enumerate(names(3), 1)}


async def converged(brokers: dict[str, Broker]) -> None:
    """Whether all nodes agree on the leaders, and every replica is in sync, complete and committed.

    Until then a broker that was cut off may take itself for a leader, and shows readers an old end of the log.
    """
    deadline = asyncio.get_running_loop().time() + CONVERGE_SECONDS
    while True:
        behind = [
            f"{name} {replica.topic}-{replica.partition} {replica.high_watermark}/{replica.log.log_end_offset}"
            for name, broker in brokers.items()
            if broker.node is not None
            for replica in broker.node.replicas.all()
            if replica.high_watermark != replica.log.log_end_offset
        ]
        images = [broker.node.image for broker in brokers.values() if broker.node is not None]
        out_of_sync = [
            f"{topic.name}-{number}"
            for image in images
            for topic, number, partition in image.partitions()
            if len(partition.isr) < len(partition.replicas) or partition.leader < 0
        ]
        epochs = [{(t.name, n): partition.leader_epoch for t, n, partition in image.partitions()} for image in images]
        agreed = all(each == epochs[0] for each in epochs)
        if agreed and not behind and not out_of_sync:
            return
        assert asyncio.get_running_loop().time() < deadline, (
            f"behind: {behind}; out of sync: {out_of_sync}; leader epochs: {epochs}"
        )
        await asyncio.sleep(0.5)
