"""Fetch where replicas have racks (KIP-392): the leader's advice, and followers that serve consumers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.broker.replica.core import follower_log
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import ErrorCode
from barnabas.protocol.records import build_end_txn_marker
from tests.support.broker.fetches import follower, offsets, parts, request, wanted
from tests.support.broker.nodes import Nodes, Peer, batch
from tests.support.waiting import until

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Two:
    """A node in rack a that leads t-0, a second replica in rack b that holds everything, and a connection."""

    def __init__(self, node: Node, peer: Peer, replica: Replica) -> None:
        self.node, self.peer, self.replica = node, peer, replica

    async def fetch(self, *partitions: Any, version: int = 11, **fields: Any) -> Any:
        (part,) = parts(await self.peer.call(request(*partitions, **fields), version))
        return part

    def follow(self) -> None:
        """From now on the second broker leads."""
        self.replica.follow(2, self.replica.leader_epoch + 1, (1, 2), self.replica.partition_epoch + 1)

    def fetched(self, *values: bytes, high_watermark: int, **fields: Any) -> None:
        """The leader sent these."""
        end = self.replica.log.log_end_offset
        records = batch(*values, base_offset=end, leader_epoch=self.replica.leader_epoch, **fields) if values else b""
        assert follower_log.on_fetched(self.replica, self.replica.leader_epoch, end, records, high_watermark, 0)


@pytest.fixture
async def two(nodes: Nodes) -> Two:
    return await start(nodes, replica_selector_class=RACK_AWARE)


async def start(nodes: Nodes, **settings: str) -> Two:
    node = await nodes.start(broker_rack="a", **settings)
    peer = await nodes.peer(node)
    await peer.create("t")
    second = node.image.brokers[1]._replace(broker_id=2, rack="b")
    node.current_image.image = dataclasses.replace(node.image, brokers={**node.image.brokers, 2: second})
    replica = node.replicas.leader("t", 0)
    replica.append(batch(b"a"))
    replica.lead(replica.leader_epoch, (1, 2), replica.partition_epoch + 1, replicas=(1, 2))
    replica.on_follower_fetch(2, -1, 1, 0)
    return Two(node, peer, replica)


async def test_the_leader_names_the_nearest_and_sends_no_records(two: Two) -> None:
    part = await two.fetch(wanted(0), rack_id="b", max_wait_ms=60_000, isolation_level=1)
    assert (part.preferred_read_replica, part.records, part.high_watermark) == (2, b"", 1)
    assert part.aborted_transactions is None
    part = await two.fetch(wanted(0, 1), rack_id="b", max_wait_ms=60_000)
    assert part.preferred_read_replica == 2, "at once, also where there is nothing to read"
    for rack in ("", "a", "c"):
        part = await two.fetch(wanted(0), rack_id=rack)
        assert (part.preferred_read_replica, offsets(part)) == (-1, [0])
    part = await two.fetch(wanted(0), version=10)
    assert offsets(part) == [0]


async def test_advice_is_news_in_every_answer_of_a_session(two: Two) -> None:
    opened = await two.peer.call(request(wanted(0), session_epoch=0, rack_id="b"), 11)
    assert [part.preferred_read_replica for part in parts(opened)] == [2]
    again = await two.peer.call(request(session_id=opened.session_id, session_epoch=1, rack_id="b"), 11)
    assert [part.preferred_read_replica for part in parts(again)] == [2]
    without = await two.peer.call(request(session_id=opened.session_id, session_epoch=2), 11)
    assert [offsets(part) for part in parts(without)] == [[0]]


@pytest.mark.parametrize("selector", [None, "org.apache.kafka.common.replica.LeaderSelector"])
async def test_without_a_selector_the_leader_serves(nodes: Nodes, selector: str | None) -> None:
    two = await start(nodes, **({} if selector is None else {"replica_selector_class": selector}))
    part = await two.fetch(wanted(0), rack_id="b")
    assert (part.preferred_read_replica, offsets(part)) == (-1, [0])


@pytest.mark.parametrize(("version", "code"), [(10, ErrorCode.NOT_LEADER_OR_FOLLOWER), (11, 0)])
async def test_followers_serve_consumers_that_know_of_it(two: Two, version: int, code: int) -> None:
    two.follow()
    part = await two.fetch(wanted(0), version=version)
    assert (part.error_code, offsets(part)) == (code, [] if code else [0])


async def test_followers_are_followed_by_no_broker(two: Two) -> None:
    two.follow()
    (part,) = parts(await two.peer.call(follower(wanted(0), topic_id=two.replica.topic_id), 17))
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_shows_what_it_knows_to_be_committed(two: Two) -> None:
    two.follow()
    two.fetched(b"b", high_watermark=1)
    part = await two.fetch(wanted(0))
    assert (offsets(part), part.high_watermark) == ([0], 1)
    for offset, code in ((1, 0), (2, 0), (3, ErrorCode.OFFSET_OUT_OF_RANGE), (-1, ErrorCode.OFFSET_OUT_OF_RANGE)):
        part = await two.fetch(wanted(0, offset))
        assert (part.error_code, part.records) == (code, b""), offset


async def test_a_followers_epoch_is_checked(two: Two) -> None:
    two.follow()
    epoch = two.replica.leader_epoch
    for step, code in ((-1, ErrorCode.FENCED_LEADER_EPOCH), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        part = await two.fetch(wanted(0, current_leader_epoch=epoch + step))
        assert part.error_code == code


async def read_at(two: Two, nodes: Nodes, offset: int, **fields: Any) -> tuple[Peer, Any]:
    """A consumer that waits at a follower."""
    reader = await nodes.peer(two.node)
    sent = reader.send(request(wanted(0, offset), max_wait_ms=60_000, **fields), 11)
    await until(lambda: two.replica.watchers)
    return reader, sent


async def test_a_wait_ends_with_the_followers_high_watermark(two: Two, nodes: Nodes) -> None:
    two.follow()
    reader, sent = await read_at(two, nodes, 1)
    two.fetched(b"b", high_watermark=1)
    two.fetched(high_watermark=2)
    (part,) = parts(await reader.receive(sent))
    assert (offsets(part), part.high_watermark) == ([1], 2)


@pytest.mark.parametrize("min_bytes", [1, 1000])
@pytest.mark.parametrize(
    "change",
    [
        lambda replica: replica.follow(3, replica.leader_epoch + 1, (1, 3), replica.partition_epoch + 1),
        lambda replica: replica.lead(replica.leader_epoch + 1, (1, 2), replica.partition_epoch + 1, replicas=(1, 2)),
    ],
    ids=["another leader", "it leads itself"],
)
async def test_a_new_leader_epoch_ends_a_wait_at_a_follower(
    two: Two, nodes: Nodes, change: Callable[[Replica], object], min_bytes: int
) -> None:
    two.follow()
    epoch = two.replica.leader_epoch
    reader = await nodes.peer(two.node)
    asked = wanted(0, 1, current_leader_epoch=epoch)
    sent = reader.send(request(asked, max_wait_ms=60_000, min_bytes=min_bytes), 11)
    await until(lambda: two.replica.watchers)
    change(two.replica)
    (part,) = parts(await reader.receive(sent))
    assert part.error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_read_committed_at_a_follower(two: Two) -> None:
    two.follow()
    epoch = two.replica.leader_epoch
    identity = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    two.fetched(b"b", high_watermark=1, base_sequence=0, **identity)
    two.fetched(high_watermark=2)
    part = await two.fetch(wanted(0), isolation_level=1)
    assert (part.high_watermark, part.last_stable_offset, offsets(part)) == (2, 1, [0])
    marker = build_end_txn_marker(
        commit=False,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=2,
        leader_epoch=epoch,
    )
    assert follower_log.on_fetched(two.replica, epoch, 2, marker, 3, 0)
    part = await two.fetch(wanted(0), isolation_level=1)
    assert (part.last_stable_offset, offsets(part)) == (3, [0, 1, 2])
    assert [(one.producer_id, one.first_offset) for one in part.aborted_transactions] == [(7, 1)]


async def test_a_follower_that_consumers_read_from_hears_of_the_high_watermark_at_once(two: Two, nodes: Nodes) -> None:
    replica = two.replica
    ids: dict[str, Any] = {"topic_id": replica.topic_id}
    replica.lead(replica.leader_epoch, (1, 2, 3), replica.partition_epoch + 1, replicas=(1, 2, 3))
    replica.on_follower_fetch(3, -1, 1, 0)
    opened = await two.peer.call(follower(wanted(0, 1), session_epoch=0, **ids), 17)
    replica.append(batch(b"b"))
    how = {"session_id": opened.session_id, "max_wait_ms": 60_000}
    (part,) = parts(await two.peer.call(follower(session_epoch=1, **how), 17))
    assert (offsets(part), part.high_watermark) == ([1], 1)
    sent = two.peer.send(follower(wanted(0, 2), session_epoch=2, **how, **ids), 17)
    await until(lambda: replica.in_sync.followers[2].log_end_offset == 2)
    replica.on_follower_fetch(3, -1, 2, 0)
    (part,) = parts(await two.peer.receive(sent))
    assert (part.records, part.high_watermark) == (b"", 2)
    sent = two.peer.send(follower(session_epoch=3, **how), 17)
    replica.append(batch(b"c"))
    (part,) = parts(await two.peer.receive(sent))
    assert offsets(part) == [2], "what it was told once does not end its waits"
