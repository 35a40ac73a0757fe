"""The listener for controllers: what it says that it serves, and what it makes of peers that are none."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import AsyncIterator
from struct import pack
from typing import Any, NamedTuple

import pytest

from barnabas.broker.api.router import Router
from barnabas.broker.config.broker_config import Endpoint
from barnabas.broker.front.server import Server
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol import wire
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC
from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
)
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.metadata import ApiVersionsRequest, DescribeClusterRequest, MetadataRequest
from barnabas.protocol.messages.quorum import VoteRequest
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.registry import API, Api, request_header_version
from barnabas.protocol.schema import encode
from barnabas.runtime.network import AsyncioNetwork
from tests.support.broker.nodes import Nodes, Peer

VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@pytest.fixture
async def server(node: Node) -> AsyncIterator[Server]:
    """A listener for controllers, beside the one for clients."""
    server = Server(node.reactor, node.config, AsyncioNetwork(), Router(node, "controller"), node.slices)
    server.serve()
    yield server
    server.abort()


@pytest.fixture
async def address(server: Server) -> tuple[str, int]:
    address = await server.bind(Endpoint("CONTROLLER", "127.0.0.1", 0))
    await server.accept()
    return address


@pytest.fixture
async def peer(address: tuple[str, int]) -> AsyncIterator[Peer]:
    """A connection to it."""
    peer = Peer(*await asyncio.open_connection(*address))
    yield peer
    peer.writer.close()


def framed(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


def request(body: bytes, key: int, version: int) -> bytes:
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="peer")
    return framed(encode(header, request_header_version(key, version)) + body)


async def test_it_says_what_it_serves(peer: Peer) -> None:
    answer = await peer.call(VERSIONS, 4)
    served = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert served == {key: api.advertised for key, api in API.items() if "controller" in api.listeners}
    assert {1, 18, 52, 53, 54, 55, 56, 59, 62, 63, 67} <= served.keys()
    assert not {0, 3, 22, 26} & served.keys()


NONSENSE = {
    "http": b"GET / HTTP/1.1\r\nHost: there\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "no header": framed(b"\0\0\0\0"),
    "unknown key": framed(pack(">hhih", 9_999, 0, 1, -1)),
    "unknown version": framed(pack(">hhih", 52, 99, 1, -1)),
    "for clients": request(encode(MetadataRequest(), 1), 3, 1),
    "too long": pack(">i", 2**31 - 1) + b"\0\x34\0\0",
    "negative": pack(">i", -1) + bytes(20),
    "cut short": request(encode(VoteRequest(cluster_id="c"), 2)[:-1], 52, 2),
    "count": request(b"\0\xff\xff\xff\xff\x07", 52, 0),
    "no text": request(b"\x03\xff\xfe\x01\0", 52, 0),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_costs_its_connection_and_one_line(
    data: bytes, peer: Peer, address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    peer.writer.write(data)
    assert await peer.is_closed()
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, caplog.text
    assert lines[0].levelno == logging.WARNING
    assert "Connection is closed by this node: connection=127.0.0.1:" in caplog.text
    assert lines[0].exc_info is None
    other = Peer(*await asyncio.open_connection(*address))
    assert (await other.call(VERSIONS, 4)).error_code == 0
    other.writer.close()


async def test_random_bodies_behind_proper_headers(address: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    """Some decode; then they are refused as requests, or answered. None is a bug of ours."""
    rng = random.Random(1)
    apis = [api for api in API.values() if "controller" in api.listeners and api.family != "admin"]
    for _ in range(200):
        api = rng.choice(apis)
        peer = Peer(*await asyncio.open_connection(*address))
        peer.writer.write(request(rng.randbytes(rng.randrange(200)), api.key, rng.randint(*api.versions)))
        peer.writer.write_eof()
        assert await peer.is_closed(), api.name
        peer.writer.close()
    assert not [record for record in caplog.records if record.exc_info], caplog.text


async def test_every_request_cut_short(address: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    for api in API.values():
        if "controller" not in api.listeners:
            continue
        body = encode(api.request(), api.versions[1])
        for size in sorted({0, 1, len(body) // 2, len(body) - 1} & set(range(len(body)))):
            peer = Peer(*await asyncio.open_connection(*address))
            peer.writer.write(request(body[:size], api.key, api.versions[1]))
            assert await peer.is_closed(), (api.name, size)
            peer.writer.close()
    assert not [record for record in caplog.records if record.exc_info], caplog.text


class Known(NamedTuple):
    """What means something to the node: names, ids, epochs."""

    texts: list[str]
    uuids: list[bytes]
    numbers: list[int]


def known_to(node: Node) -> Known:
    image = node.image
    topics = [*image.topics_by_name.values()]
    brokers = [*image.brokers.values()]
    return Known(
        ["", node.cluster_id, node.cluster_id, CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC, "t", "x" * 300],
        [bytes(16), node.directory_id, *(t.topic_id for t in topics), *(b.incarnation_id for b in brokers)],
        [0, 0, 1, 1, -1, 2, 7, image.offset, image.epoch, *(b.epoch for b in brokers)],
    )


def any_value(kind: Any, name: str, version: int, rng: random.Random, known: Known) -> Any:
    """A value of a wire type, with a liking for the ends of its range and for what means something here."""
    if isinstance(kind, wire.Array):
        return [any_value(kind.element, name, version, rng, known) for _ in range(rng.choice([0, 1, 1, 2]))]
    if isinstance(kind, wire.Text):
        return rng.choice(known.texts)
    if isinstance(kind, (wire.Blob, wire.RecordsView)):
        return rng.randbytes(rng.randrange(40))
    if not isinstance(kind, wire.Fixed):
        return any_message(kind, version, rng, known)
    if kind is wire.Bool:
        return rng.random() < 0.5
    if kind is wire.Uuid:
        return rng.choice([*known.uuids, rng.randbytes(16)])
    if kind is wire.UInt16:
        return rng.choice([0, 1, 65_535])
    if name.endswith("wait_ms"):
        return rng.choice([-1, 0, 5])
    if name.startswith("partition") and rng.random() < 0.8:
        return 0
    top = 2 ** (8 * kind.size - 1)
    fitting = [number for number in known.numbers if -top <= number < top]
    return rng.choice([*fitting, *fitting, -top, top - 1, rng.randrange(-top, top)])


def any_message(cls: Any, version: int, rng: random.Random, known: Known) -> Any:
    """A message that can be decoded, whether or not it makes sense."""
    fields = wire.present(cls, version) + wire.tagged(cls, version)
    return cls(
        **{
            field.name: None
            if field.nullable(version) and rng.random() < 0.2
            else any_value(field.wire, field.name, version, rng, known)
            for field in fields
        }
    )


@pytest.mark.parametrize(
    "api", [api for api in API.values() if "controller" in api.listeners], ids=lambda api: api.name
)
async def test_any_request_is_answered_or_refused(
    api: Api, nodes: Nodes, node: Node, address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Well-formed, senseless: an answer, or a connection that is closed with a line, and never a bug of ours."""
    rng = random.Random(api.key)
    await (await nodes.peer(node)).create("t", 2)
    for number in range(60):
        version = rng.randint(*api.versions)
        message = any_message(api.request, version, rng, known_to(node))
        peer = Peer(*await asyncio.open_connection(*address))
        try:
            await asyncio.wait_for(peer.call(message, version), 0.5)
        except asyncio.IncompleteReadError:
            assert caplog.records, (number, message)
        except TimeoutError:
            pass  # it waits, which is all that a request can want
        peer.writer.close()
        assert node.failure is None, (number, message)
        errors = [record for record in caplog.records if record.exc_info]
        assert not errors, f"{number}: {message}\n{caplog.text}"


async def test_describe_cluster_tells_of_controllers(peer: Peer, node: Node) -> None:
    answer = await peer.call(DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True), 1)
    assert (answer.error_code, answer.endpoint_type, answer.cluster_id) == (0, 2, node.cluster_id)
    assert answer.controller_id == node.node_id
    assert answer.cluster_authorized_operations == 8096
    assert (await peer.call(DescribeClusterRequest(endpoint_type=2), 2)).cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(("version", "asked", "code"), [(0, 1, 42), (1, 1, 114), (1, 7, 115)])
async def test_describe_cluster_for_brokers_is_refused(peer: Peer, version: int, asked: int, code: int) -> None:
    answer = await peer.call(DescribeClusterRequest(endpoint_type=asked), version)
    assert answer.error_code == code
    assert answer.brokers == []
    assert answer.controller_id == -1
    assert answer.error_message


MOVE = ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[1])])
BOUND: list[tuple[Any, int]] = [
    (CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]), 5),
    (DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6),
    (CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=5)]), 3),
    (ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])]), 2),
    (AlterPartitionReassignmentsRequest(topics=[MOVE]), 0),
]


def with_timeout(message: Any, timeout_ms: int) -> Any:
    message = copy.copy(message)
    message.timeout_ms = timeout_ms
    return message


def codes(answer: Any) -> set[int]:
    """Every error code of an answer."""
    found = {answer.error_code} if hasattr(answer, "error_code") else set()
    for name in ("topics", "responses", "results", "replica_election_results", "partition_result", "partitions"):
        for each in getattr(answer, name, ()):
            found |= codes(each)
    return found


@pytest.mark.parametrize("timeout_ms", [0, -1])
@pytest.mark.parametrize(("message", "version"), BOUND, ids=[type(message).__name__ for message, _ in BOUND])
async def test_a_request_whose_time_is_over_begins_nothing(
    message: Any, version: int, timeout_ms: int, nodes: Nodes, node: Node, peer: Peer
) -> None:
    await (await nodes.peer(node)).create("t", 2)
    before = node.image
    assert codes(await peer.call(with_timeout(message, timeout_ms), version)) == {ErrorCode.REQUEST_TIMED_OUT}
    await peer.call(VERSIONS, 4)
    assert node.image.topics_by_name == before.topics_by_name


@pytest.mark.parametrize(("message", "version"), BOUND, ids=[type(message).__name__ for message, _ in BOUND])
async def test_a_request_with_time_is_decided(message: Any, version: int, nodes: Nodes, node: Node, peer: Peer) -> None:
    await (await nodes.peer(node)).create("t", 2)
    assert ErrorCode.REQUEST_TIMED_OUT not in codes(await peer.call(with_timeout(message, 5_000), version))
