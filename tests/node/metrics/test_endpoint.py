"""The HTTP server of a node's metrics and health: formats, paths, what it refuses, its bounds."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest

from barnabas.broker.metrics import loop_watch
from barnabas.broker.metrics.node_metrics import MetricsAddressRefused
from barnabas.broker.node.node import Node
from barnabas.runtime import http_server
from barnabas.runtime.http_server import CONNECTIONS_MAX
from tests.support.broker.nodes import Nodes
from tests.support.broker.scrapes import get, scrape

LISTEN = {"metrics_listen": "127.0.0.1:0"}
HEAD = b"GET /livez HTTP/1.1\r\nHost: node\r\n"


@pytest.fixture
async def watched(nodes: Nodes) -> Node:
    """A node with metrics."""
    return await nodes.start(**LISTEN)


def address_of(node: Node) -> tuple[str, int]:
    assert node.metrics is not None
    return node.metrics.address


async def raw(node: Node, sent: bytes, *, end: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection(*address_of(node))
    try:
        writer.write(sent)
        if end:
            writer.write_eof()
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


# -- formats


async def test_both_formats_plain_and_packed_have_the_same_samples(watched: Node) -> None:
    text = await scrape(watched)
    packed = await scrape(watched, "Accept-Encoding: deflate, gzip;q=0.5")
    openmetrics = await scrape(watched, "Accept: application/openmetrics-text; version=1.0.0", "Accept-Encoding: gzip")
    assert text.names
    assert text.names == packed.names == openmetrics.names


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html;q=x", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;q=0", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.5", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ],
)
async def test_the_format_follows_accept(watched: Node, accept: str, expected: str) -> None:
    answer = await get(address_of(watched), "/metrics", f"Accept: {accept}")
    assert answer.headers["content-type"] == expected
    assert answer.body.endswith(b"# EOF\n") == ("openmetrics" in expected)


async def test_gzip_only_if_it_is_accepted(watched: Node) -> None:
    for accepted, packed in (("gzip", True), ("gzip;q=0", False), ("br, identity", False), ("*", True)):
        answer = await get(address_of(watched), "/metrics", f"Accept-Encoding: {accepted}")
        assert ("content-encoding" in answer.headers) == packed
        assert b"process_cpu_seconds_total" in answer.body


async def test_head_has_the_head_alone(watched: Node) -> None:
    for path in ("/metrics", "/livez"):
        answer = await get(address_of(watched), path, method="HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) > 0


async def test_several_requests_of_one_connection(watched: Node) -> None:
    found = await raw(watched, (HEAD + b"\r\n") * 3 + HEAD + b"Connection: close\r\n\r\n")
    assert found.count(b"HTTP/1.1 200 ") == 4


async def test_concurrent_scrapes(watched: Node) -> None:
    every = await asyncio.gather(*(scrape(watched) for _ in range(8)))
    assert len({frozenset(each.names) for each in every}) == 1


# -- what it refuses


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\n{}", 405),
        (b"DELETE /metrics HTTP/1.1\r\nHost: node\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 5\r\n\r\nhello", 413),
        (HEAD + b"X: " + b"x" * 20_000, 431),
        (HEAD + b"X: y\r\n" * 5_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"\x00\x00\x00\x12\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04peer\r\n\r\n", 400),
        (b"GET /metrics HTTP/9.9\r\nHost: node\r\n\r\n", 505),
        (b"GET /metric HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", 404),
        (b"GET //[ HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", 404),
    ],
)
async def test_a_wrong_request_is_refused(watched: Node, sent: bytes, status: int) -> None:
    answer = await raw(watched, sent)
    assert answer.split(b" ", 2)[1] == b"%d" % status
    assert (await get(address_of(watched), "/livez")).status == 200


@pytest.mark.parametrize(("name", "sent", "answered"), [("REQUEST_S", b"GET /me", b"408"), ("IDLE_S", b"", b"")])
async def test_a_slow_client_is_closed(
    watched: Node, monkeypatch: pytest.MonkeyPatch, name: str, sent: bytes, answered: bytes
) -> None:
    monkeypatch.setattr(http_server, name, 0.05)
    answer = await raw(watched, sent)
    assert (answer.split(b" ", 2)[1] if answer else b"") == answered


@pytest.mark.parametrize(
    "sent", [b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"]
)
async def test_half_requests_and_silent_connections_do_not_keep_a_probe_away(watched: Node, sent: bytes) -> None:
    peers = [await asyncio.open_connection(*address_of(watched)) for _ in range(CONNECTIONS_MAX + 16)]
    for _, writer in peers:
        writer.write(sent)
    for _ in range(3):
        assert (await get(address_of(watched), "/livez")).status == 200
    for _, writer in peers:
        writer.close()


async def test_a_thousand_connections(watched: Node) -> None:
    """The newest take the places of the oldest, which have sent no request; the node serves its clients."""
    peers = [await asyncio.open_connection(*address_of(watched)) for _ in range(1_000)]
    async with asyncio.timeout(30):
        for reader, _ in peers[:-CONNECTIONS_MAX]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        reader, writer = peers[-1]
        writer.write(HEAD + b"Connection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    for _, writer in peers:
        writer.close()
    async with asyncio.timeout(30):
        while (await get(address_of(watched), "/livez")).status != 200:  # until the node has noticed the closed ones
            pass


# -- its address


async def test_without_the_setting_there_is_nothing(nodes: Nodes) -> None:
    assert (await nodes.start()).metrics is None


async def test_an_address_in_use_ends_the_start(nodes: Nodes, watched: Node) -> None:
    taken = f"127.0.0.1:{address_of(watched)[1]}"
    with pytest.raises(
        MetricsAddressRefused, match=rf"metrics.listen: cannot bind {taken}: .*; name another address, or port 0"
    ):
        await nodes.start(metrics_listen=taken)


async def test_the_address_is_free_after_the_stop(nodes: Nodes) -> None:
    node = await nodes.start(**LISTEN)
    await node.stop()
    with pytest.raises(ConnectionRefusedError):
        await get(address_of(node), "/livez")


# -- health


async def test_a_served_node_is_ready(watched: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "STALLED_MS", 0)  # a busy machine may suspend the process
    for path in ("/livez", "/readyz", "/startupz"):
        answer = await get(address_of(watched), path)
        assert (answer.status, answer.body) == (200, b"ok\n")
    answer = await get(address_of(watched), "/v1/status/ready")
    assert (answer.status, answer.headers["content-type"], answer.body) == (
        200,
        "application/json",
        b'{"status":"ready"}\n',
    )


def test_a_node_without_metrics_imports_nothing_for_them() -> None:
    """Neither start-up time nor memory."""
    code = (
        "import sys, barnabas.broker.node.node, barnabas.cli.node_program\n"
        "print({'prometheus_client', 'h11', 'barnabas.broker.metrics'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
