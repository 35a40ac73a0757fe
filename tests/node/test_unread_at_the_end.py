"""Connections that this node closes while the client reads no answers, and clients that are closed at their first bytes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from struct import pack

import pytest

from barnabas.broker.front.connection import Connection
from barnabas.broker.node.node import Node
from tests.support.broker.nodes import Nodes
from tests.support.waiting import until

API_VERSIONS = pack(">ihhih", 10, 18, 0, 1, -1)
UNREAD_BYTES = 300_000  # more than the kernel takes
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    """A node whose kernel takes few answers."""
    return await nodes.start(socket_send_buffer_bytes="4096")


def connected(node: Node) -> socket.socket:
    ((_, endpoint),) = node.listing.live(node.config.inter_broker_listener)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect((endpoint.host, endpoint.port))
    return client


async def test_a_closed_connection_does_not_wait_for_a_client_that_reads_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not counted any more, so its descriptor and its answers must go, too."""
    monkeypatch.setattr("barnabas.broker.front.connection.UNSENT_MS", 100)
    transports: list[asyncio.Transport] = []
    accepted = Connection.connection_accepted

    def kept(self: Connection, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transports.append(transport)
        accepted(self, transport)

    monkeypatch.setattr(Connection, "connection_accepted", kept)
    with connected(node) as client:
        client.sendall(API_VERSIONS * 1_500)
        await until(lambda: bool(transports) and transports[0].get_write_buffer_size() > UNREAD_BYTES)
        (connection,) = node.server.connections
        descriptor = transports[0].get_extra_info("socket").fileno()
        file = os.fstat(descriptor).st_ino
        connection.close("a test")
        assert not node.server.connections

        def is_gone() -> bool:
            try:
                return os.fstat(descriptor).st_ino != file
            except OSError:
                return True

        assert not is_gone(), "the client has a while to read"
        await until(is_gone)


async def test_the_log_has_one_line_for_a_client_that_tries_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def tried(data: bytes) -> None:
        with connected(node) as client:
            client.sendall(data)
            assert client.recv(1) == b""

    for _ in range(3):
        await asyncio.to_thread(tried, CLIENT_HELLO)
    await asyncio.to_thread(tried, pack(">i", -1))
    await asyncio.to_thread(tried, CLIENT_HELLO)
    lines = [each for each in caplog.records if "is closed by this node" in each.getMessage()]
    levels = [each.levelno for each in lines]
    assert levels == [logging.WARNING, logging.DEBUG, logging.DEBUG, logging.WARNING, logging.DEBUG]
    assert "listener=PLAINTEXT reason=frame of 369295616 bytes" in lines[0].getMessage()
