"""Fetchers: replicas of one node kept up with a leader on another, over real connections.

The two nodes are clusters of their own: the test gives the follower the leader's address and says who leads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.machine import Replica
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.producers import PartitionProducers
from barnabas.work import Steps
from tests.support.broker.nodes import Nodes, batch
from tests.support.waiting import elapsed, until

LONG_MS = "60000"  # a fetch that waited, or that backed off, would be noticed


class Pair:
    """Node 1 leads, node 2 follows."""

    def __init__(self, leader: Node, follower: Node) -> None:
        self.leader = leader
        self.follower = follower
        follower.current_image.image = dataclasses.replace(
            follower.image, brokers={**follower.image.brokers, 1: leader.image.brokers[1]}
        )

    def lead(self, topic: str, partition: int = 0) -> Replica:
        """Node 1's replica, with 2 as follower in sync."""
        replica = self.leader.replicas.leader(topic, partition)
        replica.lead(replica.leader_epoch + 1, (1, 2), replica.partition_epoch + 1, replicas=(1, 2))
        return replica

    def follow(self, led: Replica, **config: int) -> Replica:
        """Node 2's replica of the same partition, on an empty disk."""
        disk = MemoryDisk()
        log = PartitionLog.open(
            disk,
            f"{led.topic}-{led.partition}",
            LogConfig(**config),  # type: ignore[arg-type]  # numbers, as given
            LogOpening(now_ms=0, topic_id=led.topic_id, clean=False),
        )
        log.store_topic_id()

        def sync(replica: Replica) -> None:
            disk.sync_now(log.unsynced_files())
            log.mark_synced(log.log_end_offset)
            self.follower.reactor.soon(lambda: replica.on_synced(log.log_end_offset))

        replica = Replica(
            led.topic, led.partition, led.topic_id, log, node_id=2, clock=self.follower.reactor.clock, request_sync=sync
        )
        self.assign(replica, led)
        return replica

    def assign(self, replica: Replica, led: Replica) -> None:
        replica.follow(1, led.leader_epoch, led.isr, led.partition_epoch)
        self.follower.fetchers.follow(replica)


@pytest.fixture
def backoff_ms() -> str:
    return LONG_MS


@pytest.fixture
async def pair(nodes: Nodes, backoff_ms: str) -> Pair:
    leader = await nodes.start()
    follower = await nodes.start(node_id="2", replica_fetch_wait_max_ms=LONG_MS, replica_fetch_backoff_ms=backoff_ms)
    peer = await nodes.peer(leader)
    for topic in ("t", "u"):
        await peer.create(topic, 3)
    return Pair(leader, follower)


def level(led: Replica, replica: Replica) -> Callable[[], bool]:
    return lambda: led.high_watermark == replica.log.log_end_offset == led.log.log_end_offset


async def test_a_follower_catches_up_and_keeps_up(pair: Pair) -> None:
    led = pair.lead("t")
    for value in (b"a", b"b"):
        led.append(batch(value))
    replica = pair.follow(led)
    await until(level(led, replica))
    assert (led.high_watermark, replica.log.epochs.entries) == (2, led.log.epochs.entries)
    for _ in range(20):
        led.append(batch(b"c"))
        await until(level(led, replica))
    assert replica.high_watermark >= 21, "the answer to a fetch carries what the fetch committed"


async def test_a_new_partition_does_not_wait_for_the_fetch_that_waits(pair: Pair) -> None:
    first = pair.lead("t")
    replica = pair.follow(first)
    first.append(batch(b"a"))
    await until(level(first, replica))
    others = [pair.lead("t", 1), pair.lead("u", 2)]
    for led in others:
        led.append(batch(b"b"))
        await until(level(led, pair.follow(led)))
    first.append(batch(b"c"))
    await until(level(first, replica))


async def test_what_the_leader_never_had_is_cut(pair: Pair) -> None:
    led = pair.lead("t")
    led.append(batch(b"a"))
    replica = pair.follow(led)
    await until(level(led, replica))
    epoch = led.leader_epoch
    pair.follower.fetchers.unfollow(replica)
    replica.lead(epoch + 1, (2,), 8, replicas=(1, 2))
    replica.append(batch(b"only here"))
    replica.high_watermark = 1
    led.lead(epoch + 2, (1, 2), 9, replicas=(1, 2))
    led.append(batch(b"b"))
    led.append(batch(b"c"))
    pair.assign(replica, led)
    await until(level(led, replica))
    assert replica.log.epochs.entries == led.log.epochs.entries == [(epoch, 0), (epoch + 2, 1)]


@pytest.mark.parametrize("backoff_ms", ["100"])
async def test_a_truncation_is_tried_again_after_an_error_that_is_not_known(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, failures = PartitionLog.producers_before, [ValueError("once")]

    def producers_before(log: PartitionLog, offset: int) -> Steps[PartitionProducers | None]:
        if failures:
            raise failures.pop()
        return known(log, offset)

    monkeypatch.setattr(PartitionLog, "producers_before", producers_before)
    led = pair.lead("t")
    led.append(batch(b"a"))
    replica = pair.follow(led)
    await until(level(led, replica))
    pair.follower.fetchers.unfollow(replica)
    replica.lead(led.leader_epoch + 1, (2,), 8, replicas=(1, 2))
    replica.append(batch(b"only here"))
    led.lead(led.leader_epoch + 2, (1, 2), 9, replicas=(1, 2))
    pair.assign(replica, led)
    await until(level(led, replica))
    assert not failures


async def test_a_log_that_the_leader_does_not_reach_begins_anew_where_the_leaders_begins(pair: Pair) -> None:
    led = pair.lead("t")
    for value in (b"a", b"b", b"c"):
        led.append(batch(value))
    led.log.delete_records_before(2)
    replica = pair.follow(led)
    await until(level(led, replica))
    assert (replica.log.log_start_offset, replica.log.log_end_offset) == (2, 3)


async def test_a_leader_that_has_not_heard_of_its_election_is_asked_again_soon(pair: Pair) -> None:
    led = pair.leader.replicas.leader("t", 0)
    disk_epoch = led.leader_epoch
    replica = pair.follow(led)
    replica.follow(1, disk_epoch + 1, (1, 2), 9)
    pair.follower.fetchers.follow(replica)
    await elapsed(pair.follower.reactor.clock, 50)
    led.lead(disk_epoch + 1, (1, 2), 9, replicas=(1, 2))
    led.append(batch(b"a"))
    await until(level(led, replica))  # before replica.fetch.backoff.ms is over


async def test_a_follower_that_must_flush_acknowledges_what_is_synced(pair: Pair) -> None:
    led = pair.lead("t")
    replica = pair.follow(led, flush_messages=1)
    led.append(batch(b"a"))
    await until(level(led, replica))
    assert replica.log.recovery_point == 1


async def test_a_lost_connection_is_made_again(pair: Pair) -> None:
    led = pair.lead("t")
    replica = pair.follow(led)
    led.append(batch(b"a"))
    await until(level(led, replica))
    point = pair.leader.image.brokers[1].end_points[0]
    pair.follower.peers.to(point.host, point.port, "fetch").disconnect("a test")
    led.append(batch(b"b"))
    await until(level(led, replica))


async def test_a_partition_that_is_not_followed_any_more_leaves_the_session(pair: Pair) -> None:
    led, other = pair.lead("t"), pair.lead("t", 1)
    replica, stays = pair.follow(led), pair.follow(other)
    led.append(batch(b"a"))
    await until(level(led, replica))
    pair.follower.fetchers.unfollow(replica)
    led.append(batch(b"b"))
    other.append(batch(b"c"))
    await until(level(other, stays))
    assert (replica.log.log_end_offset, led.high_watermark) == (1, 1)
    pair.assign(replica, led)
    await until(level(led, replica))
