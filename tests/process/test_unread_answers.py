"""Clients that ask for much and read nothing: the broker's memory stays in bounds, and others are served."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Any

import pytest

from barnabas.protocol.messages.admin import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.schema import encode
from barnabas.testing import Broker
from tests.support.oracle.wire import Wire
from tests.support.processes.frames import request_frame
from tests.support.processes.process_tree import rss_bytes

pytestmark = pytest.mark.process

MIB = 1024 * 1024
CLIENTS = 20
REQUESTS_EACH = 500
GROWTH_MAX = 2 * CLIENTS * MIB  # a MiB unread of each, and one answer or turn more

# A Fetch that waits for half a minute: the answers to what follows it must wait, too.
WAITS = FetchRequest(
    max_wait_ms=30_000,
    min_bytes=1,
    topics=[FetchTopic(topic="large", partitions=[FetchPartition(partition=0, partition_max_bytes=1_000)])],
)
PRESSING: list[tuple[Any, int]] = [
    (MetadataRequest(topics=[MetadataRequestTopic(name="large")]), 8),
    (
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)],
            include_synonyms=True,
            include_documentation=True,
        ),
        3,
    ),
    (
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(name="no", partitions=[ListOffsetsPartition(partition_index=n) for n in range(2_000)])
            ]
        ),
        5,
    ),
    (FindCoordinatorRequest(coordinator_keys=[f"group-{n}" for n in range(1_000)]), 4),
]


def test_many_clients_that_read_nothing(shared_broker: Broker) -> None:
    with Wire(shared_broker.bootstrap_servers) as wire:
        wire.create_topic("large", 200)
        for request, version in PRESSING:
            wire.call(request, version)
        before = rss_bytes(shared_broker)
        frames = [request_frame(encode(request, version), request.API_KEY, version) for request, version in PRESSING]
        first = request_frame(encode(WAITS, 11), 1, 11)
        with contextlib.ExitStack() as stack:
            pressing = []
            for number in range(CLIENTS):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", shared_broker.port)))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                pressing.append((client, memoryview(first + frames[number % len(frames)] * REQUESTS_EACH)))
            most, grew_at = 0, time.monotonic()
            while time.monotonic() - grew_at < 1.0:
                for number, (client, rest) in enumerate(pressing):
                    with contextlib.suppress(BlockingIOError):
                        if sent := client.send(rest[:65_536]) if rest else 0:
                            pressing[number] = (client, rest[sent:])
                assert wire.call(ApiVersionsRequest(), 0).error_code == 0
                time.sleep(0.05)  # the broker has much to do
                rss = rss_bytes(shared_broker)
                if rss > most:
                    most, grew_at = rss, time.monotonic()
                if most - before > GROWTH_MAX:
                    break
            assert most - before < GROWTH_MAX
            # A client that reads later gets every answer.
            client, rest = pressing[0]
            client.setblocking(True)
            client.settimeout(60)
            stream = client.makefile("rb")
            for count in range(3):
                if count == 0:
                    wire.produce(8, "large", 0, [b"now"])
                (size,) = struct.unpack(">i", stream.read(4))
                assert len(stream.read(size)) == size
