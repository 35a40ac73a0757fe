"""The series that only this broker has: transactions, fences, refusals, pauses and recovery, on one node."""

from __future__ import annotations

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tests.support.broker.nodes import Nodes, Peer
from tests.support.broker.scrapes import Scrape, scrape
from tests.support.broker.transactional_client import FEW, Client

LISTEN = {"metrics_listen": "127.0.0.1:0"}
COMPLETION = "barnabas_transactions_completion_seconds"


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    """A node with metrics and two-phase commit."""
    return await nodes.start(**LISTEN, **FEW, transaction_two_phase_commit_enable="true")


def open_transactions(found: Scrape) -> tuple[float, float]:
    """Open transactions, those with two-phase commit last."""
    name = "barnabas_transactions_open"
    return found.value(name, two_phase="false"), found.value(name, two_phase="true")


async def test_an_open_transaction_and_its_end(node: Node, peer: Peer) -> None:
    await peer.create("t", 3)
    client = Client(peer)
    assert await client.init() == 0
    assert open_transactions(await scrape(node)) == (0, 0)
    assert await client.produce(partition=1) == 0
    assert await client.produce(partition=1, sequence=1) == 0
    labels = {"topic": "t", "partition": "1"}
    age = "barnabas_partition_oldest_transaction_seconds"
    found = first = await scrape(node)
    while found.value(age, **labels) < first.value(age, **labels) + 0.01:
        found = await scrape(node)
    assert open_transactions(found) == (1, 0)
    assert found.value("barnabas_transactional_ids") == 1
    assert found.value("barnabas_transactions_oldest_open_seconds", two_phase="false") > 0
    assert found.value("barnabas_transactions_oldest_open_seconds", two_phase="true") == 0
    assert found.labels("barnabas_partition_open_transactions", "partition") == {"1"}
    assert found.value("barnabas_partition_open_transactions", **labels) == 1
    assert found.value("barnabas_partition_last_stable_offset_lag", **labels) == 2
    assert found.value(f"{COMPLETION}_count") == 0

    assert await client.end() == 0
    found = await scrape(node)
    assert open_transactions(found) == (0, 0)
    assert found.rows("barnabas_partition_open_transactions") == {}
    assert found.value(f"{COMPLETION}_count") == found.value(f"{COMPLETION}_bucket", le="30.0") == 1
    assert found.value("barnabas_transactions_markers_waiting") == 0


async def test_a_prepared_transaction(node: Node, peer: Peer) -> None:
    await peer.create("t")
    first, second = Client(peer), Client(peer)
    assert await first.init(6, enable_2pc=True) == 0
    assert await first.produce() == 0
    found = await scrape(node)
    assert (open_transactions(found), found.value("barnabas_transactions_prepared")) == ((0, 1), 0)
    assert await second.init(6, enable_2pc=True, keep_prepared_txn=True) == 0
    found = await scrape(node)
    assert (open_transactions(found), found.value("barnabas_transactions_prepared")) == ((0, 1), 1)
    assert await second.end() == 0
    found = await scrape(node)
    assert (open_transactions(found), found.value("barnabas_transactions_prepared")) == ((0, 0), 0)


async def test_fences_by_cause(node: Node, nodes: Nodes, peer: Peer) -> None:
    def causes(found: Scrape) -> dict[str, float]:
        return {dict(labels)["cause"]: value for labels, value in found.rows("barnabas_fences_total").items()}

    await peer.create("t", 2)
    old, new = Client(peer), Client(peer)
    assert await old.init() == 0
    assert await new.init() == 0
    assert set(causes(await scrape(node)).values()) == {0}
    assert await old.end(version=4) == ErrorCode.PRODUCER_FENCED
    assert causes(await scrape(node))["transactional_id"] == 1
    for version in (11, 12):  # only verified, and added to the transaction
        before = causes(await scrape(node))
        assert await old.produce(version=version, partition=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        after = causes(await scrape(node))
        assert {cause: count - before[cause] for cause, count in after.items() if count != before[cause]} == {
            "producer_epoch": 1
        }
    assert await new.produce() == 0
    assert await old.produce(version=11) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert causes(await scrape(node))["producer_epoch"] == 3

    late = Client(peer, "late")
    assert await late.init() == 0
    late.peer = await nodes.peer(node)
    assert await late.add_offsets() == 0
    late.peer = peer
    peer.send(late.ending(), 3)
    assert await peer.is_closed()
    assert causes(await scrape(node))["connection"] == 1

    member = await nodes.peer(node)
    join = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=9_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert (await member.call(join, 1)).error_code == 0
    beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=99)
    assert (await member.call(beat, 1)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert causes(await scrape(node))["group_member"] == 1


async def test_refused_connections_pauses_and_recovery(nodes: Nodes) -> None:
    node = await nodes.start(**LISTEN, max_connections_per_ip="2")
    peers = [await nodes.peer(node) for _ in range(3)]
    assert await peers[2].is_closed()
    found = await scrape(node)
    assert found.value("barnabas_connections_refused_total", reason="max_connections_per_ip") == 1
    assert found.value("barnabas_connections_refused_total", reason="max_connections") == 0
    assert 0 <= found.value("barnabas_loop_longest_pause_seconds") < 60
    assert found.value("barnabas_recovery_logs") == found.value("barnabas_recovery_logs_opened") == 0
    assert found.value("barnabas_controller_probe_fences_total") == 0
