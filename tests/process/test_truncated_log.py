"""What the bundled consumer does when a log that it has read is truncated by an unclean election: it goes back, or says so.

The election is that of `test_unclean_election`: ten records are on both replicas, ten on the leader alone, which dies, and ten are
written by the replica that had fallen behind.
"""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client import Consumer, TopicPartition
from barnabas.client.errors import LogTruncated
from barnabas.client.types import AutoOffsetReset
from tests.support.processes.cluster import Cluster
from tests.support.processes.forked_log import AFTER, BEFORE, LOST, TOPIC, produce
from tests.support.processes.kit_cluster import cluster, start_cluster

__all__ = ["cluster", "start_cluster"]

pytestmark = pytest.mark.process


class BundledReader:
    """A consumer of the bundled client that reads the topic, as a member of a group or not. Its loop runs within calls only."""

    def __init__(self, cluster: Cluster, reset: AutoOffsetReset, group_id: str | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._consumer = Consumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=group_id,
            enable_auto_commit=False,
            auto_offset_reset=reset,
            metadata_max_age_ms=1_000,
        )
        self._loop.run_until_complete(self._consumer.start())
        self._consumer.assign([TopicPartition(TOPIC, 0)])
        if group_id is None:
            self._consumer.seek(TopicPartition(TOPIC, 0), 0)

    def read_until(self, last: bytes) -> list[bytes]:
        """Values up to `last`.

        Raises:
            LogTruncated: what was read is not in the log any more.
        """

        async def read() -> list[bytes]:
            seen: list[bytes] = []
            async with asyncio.timeout(60):
                while not seen or seen[-1] != last:
                    seen.append((await self._consumer.getone()).value or b"")
            return seen

        return self._loop.run_until_complete(read())

    def commit(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


def test_the_bundled_consumer_goes_back_to_the_fork_or_says_where_it_is(cluster: Cluster) -> None:
    cluster.create_topic(
        TOPIC, 1, replication_factor=2, min__insync__replicas="1", unclean__leader__election__enable="true"
    )
    first = cluster.leader(TOPIC, 0)
    (behind,) = (node_id for node_id in cluster.partitions(TOPIC)[0].replica_nodes if node_id != first)
    produce(cluster, BEFORE)
    member = BundledReader(cluster, "earliest", group_id="bundled")
    readers = [member]
    try:
        assert member.read_until(BEFORE[-1]) == BEFORE
        member.commit()  # makes the topic of the offsets, too, while all brokers are there
        cluster.kill(behind)
        cluster.wait_until(lambda: cluster.partitions(TOPIC)[0].isr_nodes == [first], "the leader is alone in sync", 60)
        produce(cluster, LOST)
        assert member.read_until(LOST[-1]) == LOST
        member.commit()
        strict = BundledReader(cluster, "none")
        readers += [BundledReader(cluster, "earliest"), BundledReader(cluster, "latest"), strict]
        for reader in readers[1:]:
            assert reader.read_until(LOST[-1]) == BEFORE + LOST
        cluster.kill(first)
        cluster.start_node(behind)
        cluster.wait_until(lambda: cluster.leader(TOPIC, 0) == behind, "who had fallen behind leads", 60)
        produce(cluster, AFTER)
        for reader in readers[:-1]:
            assert reader.read_until(AFTER[-1]) == AFTER, "whatever the policy is"
        with pytest.raises(LogTruncated) as told:
            strict.read_until(AFTER[-1])
        assert (told.value.topic, told.value.partition) == (TOPIC, 0)
        assert (told.value.position, told.value.diverging_offset) == (20, 10)
        readers.append(
            BundledReader(cluster, "latest", group_id="bundled")
        )  # from the committed offset, beyond the fork
        assert readers[-1].read_until(AFTER[-1]) == AFTER
    finally:
        for reader in readers:
            reader.close()
