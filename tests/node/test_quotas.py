"""Throttled clients on a real socket: answers at once, a muted connection, nothing lost, others unhurt."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from barnabas.broker.api.access import CLUSTER_NAME
from barnabas.broker.node.node import Node
from barnabas.client import Admin
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from barnabas.protocol.messages.offsets import OffsetForLeaderEpochRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.quotas import AlterClientQuotasRequest
from barnabas.protocol.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from barnabas.testing import Cluster
from tests.support.broker.nodes import Nodes, Peer, batch
from tests.support.broker.some_access import SomeAccess
from tests.support.clock import StoppedClock
from tests.support.oracle.quota_requests import Change, entry
from tests.support.waiting import turns, until


async def limit(peer: Peer, client_id: str, *changes: Change) -> None:
    """Sets quotas of a client id, with a client id that has none."""
    before, peer.client_id = peer.client_id, "administrator"
    answer = await peer.call(AlterClientQuotasRequest(entries=[entry([("client-id", client_id)], *changes)]), 1)
    peer.client_id = before
    assert [each.error_code for each in answer.entries] == [0]


def produce(size_bytes: int, acks: int = 1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch(b"x" * size_bytes))
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[TopicProduceData(name="t", partition_data=[data])])


def fetch(offset: int = 0, **fields: Any) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    fields = {"session_epoch": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20} | fields
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=[wanted])], **fields)


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    """A node that measures one whole second and the present one, so that throttle times are short. Its clock stands still."""
    started = await nodes.start(quota_window_num="2")
    started.reactor.clock = StoppedClock()
    return started


@pytest.fixture
async def limited(peer: Peer) -> Peer:
    """A peer with a topic, whose client id is "limited"."""
    await peer.create("t")
    peer.client_id = "limited"
    return peer


async def test_without_quotas_nothing_is_charged(limited: Peer, node: Node) -> None:
    assert not node.server.client_quotas.active
    await limit(limited, "limited", ("producer_byte_rate", 1.0))
    assert node.server.client_quotas.active
    await limit(limited, "limited", ("producer_byte_rate", None))
    assert not node.server.client_quotas.active
    assert (await limited.call(produce(10_000), 9)).throttle_time_ms == 0


async def test_a_producer_above_its_rate_is_answered_at_once_and_muted(limited: Peer, nodes: Nodes, node: Node) -> None:
    await limit(limited, "limited", ("producer_byte_rate", 100.0))
    answer = await limited.call(produce(13_000), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0, "the records are written"
    assert 129_000 <= answer.throttle_time_ms <= 131_000
    (connection,) = node.server.connections
    sent = [limited.send(ApiVersionsRequest(), 0) for _ in range(3)]  # held while the connection is muted
    other = await nodes.peer(node)
    assert (await other.call(produce(13_000), 9)).throttle_time_ms == 0
    assert not connection.core.may_read(), "another client is not delayed"
    assert not limited.reader._buffer  # type: ignore[attr-defined]  # private: nothing has arrived
    connection._unmute()
    for one in sent:
        assert (await limited.receive(one)).error_code == 0


async def test_a_producer_without_answers_is_muted(limited: Peer) -> None:
    await limit(limited, "limited", ("producer_byte_rate", 10_000.0))
    began = time.monotonic()
    limited.send(produce(12_000, acks=0), 9)
    await limited.call(ApiVersionsRequest(), 0)
    assert time.monotonic() - began >= 0.19  # of 207 ms: timers count whole milliseconds


async def test_a_muted_connection_reads_nothing_and_is_not_idle(limited: Peer, node: Node) -> None:
    await limit(limited, "limited", ("producer_byte_rate", 10.0))
    assert (await limited.call(produce(1_000), 9)).throttle_time_ms > 60_000
    (connection,) = node.server.connections
    assert not connection.core.may_read()
    assert not connection.core.reading
    connection.active = False
    assert not connection.is_idle()
    connection._unmute()
    assert connection.core.may_read()
    assert (await limited.call(ApiVersionsRequest(), 0)).error_code == 0


async def test_a_muted_connection_that_closes_leaves_no_timer(limited: Peer, node: Node) -> None:
    await limit(limited, "limited", ("producer_byte_rate", 10.0))
    await limited.call(produce(1_000), 9)
    (connection,) = node.server.connections
    connection.close("test")
    await turns()
    assert connection.closed
    connection.mute(10_000)
    assert not node.server.connections


async def test_a_throttled_consumer_gets_no_records_and_loses_none(limited: Peer, node: Node) -> None:
    clock = cast("StoppedClock", node.reactor.clock)
    for _ in range(3):
        await limited.call(produce(4_000), 9)
    await limit(limited, "limited", ("consumer_byte_rate", 5_000.0))
    got = 0
    throttles = []
    for _ in range(8):
        answer = await limited.call(fetch(got, max_bytes=5_000), 11)
        throttles.append(answer.throttle_time_ms)
        if answer.throttle_time_ms:
            assert answer.responses == []
            clock.time_ms += answer.throttle_time_ms
        elif answer.responses[0].partitions[0].records:
            got += 1
        if got == 3:
            break
    assert got == 3
    assert any(throttles), "12 kB are more than 5 kB in a second"
    assert max(throttles) < 2_000


async def test_a_session_that_was_throttled_begins_again(limited: Peer, node: Node) -> None:
    await limited.call(produce(9_000), 9)
    await limited.call(produce(2_000), 9)
    await limit(limited, "limited", ("consumer_byte_rate", 10_000.0))
    first = await limited.call(fetch(session_epoch=0, max_bytes=9_500), 11)
    assert (first.throttle_time_ms, len(first.responses)) == (0, 1)
    follow = fetch(1, session_id=first.session_id, session_epoch=1)
    throttled = await limited.call(follow, 11)
    assert throttled.throttle_time_ms > 0
    assert (throttled.responses, throttled.session_id, throttled.error_code) == ([], first.session_id, 0)
    cast("StoppedClock", node.reactor.clock).time_ms += throttled.throttle_time_ms
    again = await limited.call(FetchRequest(session_id=first.session_id, session_epoch=2, max_bytes=1 << 20), 11)
    assert again.responses[0].partitions[0].records, "the partition was not named again"
    refused = await limited.call(fetch(session_epoch=0), 11)
    assert refused.throttle_time_ms > 0
    assert refused.session_id == 0, "as in Kafka no session is begun"


async def test_request_time_counts_for_every_request(limited: Peer) -> None:
    await limit(limited, "limited", ("request_percentage", 0.000_1))
    answer = await limited.call(MetadataRequest(), 9)
    assert 0 < answer.throttle_time_ms <= 1_000
    assert (await limited.call(MetadataRequest(), 2)).brokers, "no throttle time in this version"


async def test_followers_are_exempt(limited: Peer, node: Node) -> None:
    await limited.call(produce(20_000), 9)
    await limit(limited, "limited", ("consumer_byte_rate", 1.0), ("request_percentage", 0.000_1))
    answer = await limited.call(fetch(replica_id=7), 11)
    assert answer.throttle_time_ms == 0


@pytest.mark.parametrize("may", [False, True], ids=["a client", "a broker"])
@pytest.mark.parametrize(
    ("request_of_brokers", "version"),
    [
        (fetch(replica_id=7), 11),
        (OffsetForLeaderEpochRequest(replica_id=7), 3),
        (AddPartitionsToTxnRequest(), 4),
        (WriteTxnMarkersRequest(), 1),
    ],
    ids=["Fetch", "OffsetForLeaderEpoch", "AddPartitionsToTxn", "WriteTxnMarkers"],
)
async def test_only_who_may_send_requests_of_brokers_is_exempt(
    limited: Peer, node: Node, request_of_brokers: Any, version: int, may: bool
) -> None:
    """Anyone could send these requests, refused ones, without any limit."""
    await limit(limited, "limited", ("request_percentage", 0.000_1))
    (connection,) = node.server.connections
    question = AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME
    connection.access = SomeAccess(question) if may else SomeAccess()
    await limited.call(request_of_brokers, version)
    assert connection.core.may_read() == may


@pytest.mark.parametrize("request_of_a_login", [SaslHandshakeRequest(), SaslAuthenticateRequest()])
async def test_requests_of_a_login_where_there_is_none_are_charged_as_by_kafka(
    limited: Peer, node: Node, request_of_a_login: Any
) -> None:
    await limit(limited, "limited", ("request_percentage", 0.000_1))
    await limited.call(request_of_a_login, 1)
    (connection,) = node.server.connections
    assert not connection.core.may_read()


async def test_an_unknown_version_of_api_versions_is_charged(limited: Peer, node: Node) -> None:
    """Its header is not read, so the client id is the one of the connection's last request."""
    await limit(limited, "limited", ("request_percentage", 0.000_1))
    (connection,) = node.server.connections
    await limited.call(ApiVersionsRequest(), 0)
    connection._unmute()
    connection._muted_until_ms = 0
    limited.writer.write(b"\0\0\0\x0a\0\x12\x7f\xff\0\0\0\7\0\0")
    await until(lambda: not connection.core.may_read())


async def test_a_quota_of_very_many_clients_applies_in_later_turns(peer: Peer, node: Node) -> None:
    entries = [entry([("client-id", f"c{number}")], ("producer_byte_rate", 1.0)) for number in range(2_000)]
    await peer.call(AlterClientQuotasRequest(entries=entries), 1)
    quotas = node.server.client_quotas
    await until(lambda: quotas.active)
    assert quotas.clients.produced("ANONYMOUS", "c1999", 100, 0) > 0


async def test_an_address_that_connects_too_often_waits_and_is_closed(peer: Peer, nodes: Nodes, node: Node) -> None:
    change = entry([("ip", "127.0.0.1")], ("connection_creation_rate", 2.0))
    await peer.call(AlterClientQuotasRequest(entries=[change]), 1)
    accepted = [await nodes.peer(node) for _ in range(2)]
    for one in accepted:
        assert (await one.call(ApiVersionsRequest(), 0)).error_code == 0
    began = time.monotonic()
    refused = await nodes.peer(node)
    refused.send(ApiVersionsRequest(), 0)
    assert await refused.is_closed()
    assert time.monotonic() - began >= 0.45, "it waits for half a second"
    assert (await peer.call(ApiVersionsRequest(), 0)).error_code == 0
    change = entry([("ip", "127.0.0.1")], ("connection_creation_rate", None))
    await peer.call(AlterClientQuotasRequest(entries=[change]), 1)
    another = await nodes.peer(node)
    assert (await another.call(ApiVersionsRequest(), 0)).error_code == 0


@pytest.mark.parametrize(("version", "codes"), [(7, [0, 89]), (5, [0, 0])])
async def test_topics_above_the_mutation_rate_are_refused(peer: Peer, version: int, codes: list[int]) -> None:
    await limit(peer, "limited", ("controller_mutation_rate", 1.0))
    peer.client_id = "limited"
    topics = [CreatableTopic(name=name, num_partitions=12, replication_factor=1) for name in ("a", "b")]
    answer = await peer.call(CreateTopicsRequest(topics=topics, timeout_ms=5_000), version)
    assert [each.error_code for each in answer.topics] == codes
    assert 0 < answer.throttle_time_ms <= 13_000


async def test_a_controller_on_another_node_knows_the_client() -> None:
    with Cluster(3) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers, client_id="limited") as admin:
            await admin.alter_client_quotas({"client-id": "limited"}, {"controller_mutation_rate": 1.0})
            described = await admin.describe_cluster()
            for broker in described.brokers:
                host, port = broker.host, broker.port
                reader, writer = await asyncio.open_connection(host, port)
                other = Peer(reader, writer)
                other.client_id = f"limited-{broker.node_id}"
                await admin.alter_client_quotas({"client-id": other.client_id}, {"controller_mutation_rate": 1.0})
                topics = [
                    CreatableTopic(name=f"{name}{broker.node_id}", num_partitions=5, replication_factor=1)
                    for name in "abcd"
                ]
                answer = await other.call(CreateTopicsRequest(topics=topics, timeout_ms=5_000), 7)
                assert [each.error_code for each in answer.topics] == [0, 0, 0, 89]
                assert answer.throttle_time_ms > 0
                writer.close()
