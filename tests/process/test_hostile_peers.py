"""Peers that break the protocol: the broker answers with Kafka's code or closes the connection, and goes on as before.

Every test ends with the same three questions: is the broker alive, is its memory what it was, and is everything that was
acknowledged still there.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, decode_records, iter_batches
from barnabas.protocol.schema import decode, encode
from barnabas.testing import Broker
from tests.support.oracle.wire import Wire
from tests.support.processes.frames import request_frame
from tests.support.processes.process_tree import rss_bytes

pytestmark = pytest.mark.process

MIB = 1024 * 1024
TOPIC = "kept"


def batch(*values: bytes, **fields: int | bool) -> bytearray:
    now_ms = int(time.time() * 1000)
    return build_batch([NewRecord(None, value, now_ms) for value in values], **fields)  # type: ignore[arg-type]  # as declared there


def fetch_all(wire: Wire, topic: str) -> list[bytes | None]:
    data = wire.call(fetch_request(topic), 12).responses[0].partitions[0]
    assert data.error_code == 0
    return [
        record.value for at, header in iter_batches(data.records) for record in decode_records(data.records, at, header)
    ]


def fetch_request(topic: str):  # type: ignore[no-untyped-def]  # FetchRequest; imported late to keep the list above short
    from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    return FetchRequest(max_bytes=50 * MIB, topics=[FetchTopic(topic=topic, partitions=[partition])])


def produce_request(records: bytes | bytearray | None, topic: str = TOPIC, **fields: object) -> ProduceRequest:
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])]
    return ProduceRequest(**({"acks": -1, "timeout_ms": 5_000, "topic_data": data} | fields))  # type: ignore[arg-type]  # as declared


@pytest.fixture
def broker(shared_broker: Broker) -> Iterator[Broker]:
    """A broker with ten acknowledged records, looked at again when the test is over."""
    served_broker = shared_broker
    with Wire(served_broker.bootstrap_servers) as wire:
        wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 8)
        kept_before = [value for value in fetch_all(wire, TOPIC) if value is not None and value.startswith(b"acked")]
        values = [f"acked {n}".encode() for n in range(10)]
        for value in values:
            answer = wire.call(produce_request(batch(value)), 8)
            assert answer.responses[0].partition_responses[0].error_code == 0
    before = rss_bytes(served_broker)
    yield served_broker
    assert served_broker.broker(1).state == "running"
    with Wire(served_broker.bootstrap_servers) as wire:
        kept = [value for value in fetch_all(wire, TOPIC) if value is not None and value.startswith(b"acked")]
    assert kept == kept_before + values
    assert rss_bytes(served_broker) - before < 64 * MIB
    assert "Traceback" not in served_broker.broker(1).log


def is_closed(peer: socket.socket, timeout: float = 60.0) -> bool:
    """Whether the broker closes; whatever it sends before is passed over."""
    peer.settimeout(timeout)
    try:
        while peer.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=60)


def test_random_bytes(broker: Broker) -> None:
    rng = random.Random(1)
    for _ in range(100):
        with connect(broker) as peer:
            peer.sendall(rng.randbytes(rng.randrange(1, 3_000)))
            peer.shutdown(socket.SHUT_WR)
            assert is_closed(peer)


def test_announced_but_unsent_frames_cost_no_memory(broker: Broker) -> None:
    peers = [connect(broker) for _ in range(200)]
    before = rss_bytes(broker)
    for peer in peers:
        peer.sendall(struct.pack(">ihhih", 99 * MIB, 0, 9, 1, -1) + bytes(1000))
    with Wire(broker.bootstrap_servers) as wire:
        assert wire.call(ApiVersionsRequest(), 0).error_code == 0
    assert rss_bytes(broker) - before < 300 * MIB
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 8, struct.pack(">i", 2**31 - 1)),
        (3, 12, b"\xff\xff\xff\xff\x0f"),
        (3, 12, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        (1, 4, struct.pack(">iiiibi", -1, 0, 1, MIB, 0, 2**31 - 1)),
        (0, 3, struct.pack(">hhii", -1, -1, 1000, 2**31 - 1)),
        (0, 3, struct.pack(">hhii", -1, -1, 1000, -2)),
    ],
)
def test_hostile_counts(broker: Broker, key: int, version: int, body: bytes) -> None:
    before = rss_bytes(broker)
    with connect(broker) as peer:
        peer.sendall(request_frame(body, key, version))
        assert is_closed(peer)
    assert rss_bytes(broker) - before < 16 * MIB


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_of_api_versions_is_told_the_range(broker: Broker, version: int) -> None:
    with connect(broker) as peer:
        header = struct.pack(">hhih", 18, version, 4711, -1)
        peer.sendall(struct.pack(">i", len(header)) + header)
        size, correlation = struct.unpack(">ii", peer.recv(8))
        answer = decode(ApiVersionsResponse, peer.recv(size - 4), 0)
        assert correlation == 4711
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [(18, 0, 4)]
        # and the connection goes on
        peer.sendall(request_frame(b"", 18, 0))
        size, correlation = struct.unpack(">ii", peer.recv(8))
        assert correlation == 7


# -- record batches ----------------------------------------------------------------------------------------------------


def refusal(broker: Broker, records: bytes | bytearray | None, version: int = 9, **fields: Any) -> int:
    with Wire(broker.bootstrap_servers) as wire:
        answer = wire.call(produce_request(records, **fields), version).responses[0].partition_responses[0]
        if answer.error_code:
            assert answer.base_offset == -1
        return int(answer.error_code)


def test_acks_that_cannot_be(broker: Broker) -> None:
    assert refusal(broker, batch(b"x"), acks=2) == ErrorCode.INVALID_REQUIRED_ACKS
    assert refusal(broker, batch(b"x"), acks=-2) == ErrorCode.INVALID_REQUIRED_ACKS


def test_acks_0_that_fails_closes_the_connection(broker: Broker) -> None:
    with connect(broker) as peer:
        body = encode(produce_request(batch(b"x"), "missing", acks=0), 8)
        peer.sendall(request_frame(body, 0, 8))
        assert is_closed(peer)
    assert "acks=0" in broker.broker(1).log


def test_transactional_batches_without_a_transaction(broker: Broker) -> None:
    records = batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    assert refusal(broker, bytearray(records), 9) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # Kafka's way to say "try again": the coordinator is not there yet
    assert refusal(broker, bytearray(records), 9, transactional_id="nobody") == ErrorCode.NOT_ENOUGH_REPLICAS
    with Wire(broker.bootstrap_servers) as wire:
        wire.find_coordinator("nobody", 1)
    assert refusal(broker, bytearray(records), 9, transactional_id="nobody") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
