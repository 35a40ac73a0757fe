"""The admin port: faults and brokers over HTTP, what it refuses, its bounds, and hostile bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.runtime import http_server
from barnabas.testing import Broker, Cluster, KitError, NotPossible, kit_thread
from barnabas.testing.admin_port import AdminRoutes
from barnabas.testing.core import Core
from barnabas.testing.faults.document import DOCUMENT_BYTES_MAX
from tests.support.elsewhere import wait_until
from tests.support.http import call, raw
from tests.support.oracle.wire import Wire

REQUEST = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
DEADLINE_S = 30.0
HEAD = b"GET /v1/faults HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 1}, admin_port=0) as kafka:
        yield kafka


@pytest.fixture
def kafka(broker: Broker) -> Iterator[Broker]:
    yield broker
    broker.faults.clear()


@pytest.fixture
def url(kafka: Broker) -> str:
    return kafka.admin_url


def code(kafka: Cluster, client_id: str = "app") -> int:
    """The error of one Metadata request."""
    with Wire(kafka.bootstrap_servers, client_id=client_id) as peer:
        return int(peer.call(REQUEST, 9).topics[0].error_code)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


# -- what it does


def test_a_fault_from_its_installation_to_its_end(kafka: Broker, url: str) -> None:
    status, made = call(
        "POST", f"{url}/v1/faults", {"api": "Metadata", "client": "app", "error": "UNKNOWN_SERVER_ERROR"}
    )
    assert (status, made["id"] > 0, made["hits"]) == (201, True, 0)
    status, told = call("POST", f"{url}/v1/faults/verify")
    assert status == 409
    assert "no request met <error on Metadata client='app', 0 hits>" in told["error"]

    assert [code(kafka, "other"), code(kafka), code(kafka)] == [0, -1, 0]
    status, shown = call("GET", f"{url}/v1/faults/{made['id']}")
    assert (status, shown["hits"], shown["used_up"]) == (200, 1, True)
    assert [(each["client"], each["topic"], each["broker"]) for each in shown["requests"]] == [("app", ["orders"], 1)]
    assert call("POST", f"{url}/v1/faults/verify") == (200, {})
    assert call("GET", f"{url}/v1/faults")[1]["faults"] == [{**made, "hits": 1, "used_up": True}]

    assert call("DELETE", f"{url}/v1/faults/{made['id']}")[0] == 200
    assert call("GET", f"{url}/v1/faults/{made['id']}")[0] == 404
    assert call("POST", f"{url}/v1/faults", {"faults": [{"api": "*", "drop": True}] * 3})[0] == 201
    assert call("DELETE", f"{url}/v1/faults") == (200, {"removed": 3})
    assert code(kafka) == 0


def test_a_request_waits_for_hits_and_releases_what_is_held(kafka: Broker, url: str) -> None:
    number = call("POST", f"{url}/v1/faults", {"api": "Metadata", "client": "app", "hold": True})[1]["id"]
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(call, "GET", f"{url}/v1/faults/{number}?hits=1&timeout=30")
        held = pool.submit(code, kafka)
        assert waiting.result(DEADLINE_S)[1]["hits"] == 1
        assert not held.done()
        assert call("POST", f"{url}/v1/faults/{number}/release")[0] == 200
        assert held.result(DEADLINE_S) == 0
    status, told = call("GET", f"{url}/v1/faults/{number}?hits=2&timeout=0.05")
    assert (status, told) == (
        504,
        {"error": "<hold on Metadata client='app', 1 hits> has met 1 of 2 requests within 0.05 s"},
    )


def test_brokers_and_leaders() -> None:
    with Cluster(brokers=3, topics={"orders": 1}, admin_port=0) as kafka:
        url = kafka.admin_url
        status, told = call("GET", f"{url}/v1/brokers")
        assert status == 200
        assert told["bootstrap_servers"] == kafka.bootstrap_servers
        assert told["brokers"] == [
            {"id": each.id, "address": each.address, "state": "running"} for each in kafka.brokers
        ]
        leader = call("GET", f"{url}/v1/leaders?topic=orders&partition=0")[1]["leader"]
        moved = call("POST", f"{url}/v1/leaders", {"topic": "orders"})[1]["leader"]
        assert moved == kafka.leader("orders") != leader
        other = 6 - leader - moved
        assert call("POST", f"{url}/v1/leaders", {"topic": "orders", "partition": 0, "to": other}) == (
            200,
            {"leader": other},
        )
        for action, state in [
            ("pause", "paused"),
            ("resume", "running"),
            ("kill", "down"),
            ("restart", "running"),
            ("stop", "down"),
            ("restart", "running"),
        ]:
            assert call("POST", f"{url}/v1/brokers/2/{action}") == (200, {"id": 2, "state": state})
            assert kafka.broker(2).state == state
        kafka.kill(3)
        status, told = call("POST", f"{url}/v1/brokers/3/pause")
        assert (status, told) == (409, {"error": "broker 3 is down, so it cannot be paused: restart it first"})


def test_the_port_ends_with_its_cluster_and_is_off_by_default() -> None:
    with Broker() as kafka:
        with pytest.raises(KitError, match="the admin port is off: switch it on by admin_port=0"):
            _ = kafka.admin_url
        url = kafka.wait(kafka.open_admin_port(0))
        assert kafka.wait(kafka.open_admin_port(0)) == url == kafka.admin_url
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), DEADLINE_S) as idle:
            kafka.stop()
            assert idle.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        call("GET", f"{url}/v1/faults")


def test_it_listens_on_this_machine_only(url: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(url.rpartition(":")[2])), DEADLINE_S)


# -- what it refuses


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/", None, 404, "unknown path '/'"),
        ("GET", "/v1/fault", None, 404, "did you mean '/v1/faults'"),
        ("GET", "/v1/faults/77", None, 404, "unknown fault '77'; the latest: there is none"),
        ("GET", "/v1/faults/" + "9" * 5000, None, 404, "unknown fault"),
        ("GET", "/v1/faults/%00%2e%2e", None, 404, "unknown fault"),
        ("DELETE", "/v1/faults/x", None, 404, "unknown fault 'x'"),
        ("POST", "/v1/faults/1/relase", None, 404, "unknown path"),
        ("PUT", "/v1/faults", b"{}", 405, "use GET, POST, DELETE"),
        ("OPTIONS", "/v1/faults", None, 405, "OPTIONS is not possible"),
        ("GET", "/v1/brokers/1/kill", None, 405, "use POST"),
        ("POST", "/v1/faults", None, 400, "this is no JSON"),
        ("POST", "/v1/faults", b"{", 400, "this is no JSON"),
        ("POST", "/v1/faults", b"[" * 200_000, 400, "nested too deep"),
        ("POST", "/v1/faults", b"\xff", 400, "this is no JSON"),
        ("POST", "/v1/faults?strict=no", {"api": "EndTxn", "drop": True}, 400, "unknown key of the query 'strict'"),
        ("POST", "/v1/faults", {"api": "EndTxn", "drop": True, "broker": 7}, 409, "broker 7 is unknown"),
        ("GET", "/v1/faults?%", None, 400, "the query of the path"),
        ("GET", "/v1/faults?" + "a=1&" * 20, None, 400, "the query of the path"),
        ("GET", "/v1/leaders?topic=a&topic=b", None, 400, "there twice"),
        ("DELETE", "/v1/faults", b"[1]", 400, "takes no body"),
        ("POST", "/v1/brokers/7/kill", None, 404, "broker 7 is unknown"),
        ("POST", "/v1/brokers/one/kill", None, 404, "broker 'one' is unknown"),
        ("POST", "/v1/brokers/1/kil", None, 404, "unknown action 'kil'; did you mean 'kill'"),
        ("GET", "/v1/leaders", None, 400, "topic is missing"),
        ("GET", "/v1/leaders?topic=order", None, 409, "unknown topic 'order'; did you mean 'orders'"),
        ("GET", "/v1/leaders?topic=orders&partition=-1", None, 400, "write a whole number"),
        ("GET", "/v1/leaders?topic=orders&partition=9", None, 409, "partition 9 of topic 'orders' is unknown"),
        ("POST", "/v1/leaders", [], 400, "write an object"),
        ("POST", "/v1/leaders", {"topic": 5}, 400, "topic: write a name"),
        ("POST", "/v1/leaders", {"topic": "orders", "too": 2}, 400, "unknown key 'too'; did you mean 'to'"),
        ("POST", "/v1/leaders", {"topic": "orders", "to": True}, 400, "whole numbers"),
        ("POST", "/v1/leaders", {"topic": "orders", "to": 9}, 409, "broker 9 has no replica"),
    ],
)
def test_a_wrong_request_is_refused(url: str, method: str, path: str, body: Any, status: int, text: str) -> None:
    found, told = call(method, url + path, body)
    assert (found, list(told)) == (status, ["error"])
    assert text in told["error"]


@pytest.mark.parametrize(
    "query", ["hits=x", "hits=-1", "hits=1&timeout=soon", "hits=1&timeout=nan", "hits=1&timeout=121", "hit=1"]
)
def test_a_wrong_wait_is_refused(url: str, query: str) -> None:
    number = call("POST", f"{url}/v1/faults", {"api": "EndTxn", "drop": True})[1]["id"]
    status, told = call("GET", f"{url}/v1/faults/{number}?{query}")
    assert status == 400, told


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:80"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8474"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:8474"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:8474"}, 200),
    ],
)
def test_a_web_page_cannot_use_it(kafka: Broker, url: str, headers: dict[str, str], status: int) -> None:
    """Cross-site requests have an Origin; after DNS rebinding the Host is the page's."""
    kafka.faults.on("EndTxn", strict=False).drop()
    assert call("DELETE", f"{url}/v1/faults", None, headers)[0] == status
    assert len(kafka.faults.all()) == (status == 403)


def test_a_refused_method_names_those_that_are_possible(url: str) -> None:
    sent = b"GET /v1/faults/verify HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b"\r\nallow: POST\r\n" in raw(url, sent, end=False)


# -- HTTP/1.1


@pytest.mark.parametrize("end", [False, True], ids=["open", "half closed"])
def test_several_requests_of_one_connection(url: str, end: bool) -> None:
    """A client that sends no more gets the responses, too."""
    found = raw(url, (HEAD + b"\r\n") * 3 + HEAD + b"Connection: close\r\n\r\n", end=end)
    assert found.count(b"HTTP/1.1 200 ") == 4


def test_a_body_in_chunks_after_100_continue(kafka: Broker, url: str) -> None:
    body = json.dumps({"api": "EndTxn", "drop": True, "strict": False}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"
    head = b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), DEADLINE_S) as peer:
        peer.sendall(head)
        assert peer.recv(100).startswith(b"HTTP/1.1 100 ")
        peer.sendall(chunks)
        found = b""
        while piece := peer.recv(65_536):
            found += piece
    assert status_of(found) == 201
    assert len(kafka.faults.all()) == 1


# -- its bounds


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"X: " + b"x" * 20_000, 431),
        (HEAD + b"X: y\r\n" * 5_000, 431),
        (b"x" * 20_000, 431),
        (b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (DOCUMENT_BYTES_MAX + 1), 413),
        (b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n" % (b"9" * 1_000), 400),
        (
            b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"10000\r\n%s\r\n" % (b"x" * 65_536) * 5,
            413,
        ),
        (b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"GET /v1/faults HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/faults HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_what_is_too_large_or_no_http_is_refused_and_the_connection_ends(url: str, sent: bytes, status: int) -> None:
    assert status_of(raw(url, sent, end=False)) == status
    assert call("GET", f"{url}/v1/faults")[0] == 200


def test_a_new_connection_takes_the_place_of_the_oldest_silent_one(url: str) -> None:
    port = int(url.rpartition(":")[2])
    opened = [socket.create_connection(("127.0.0.1", port), DEADLINE_S) for _ in range(http_server.CONNECTIONS_MAX)]
    try:
        for each in opened:  # they are counted once they are accepted, and this one is answered after that
            each.sendall(HEAD + b"\r\n")
            assert each.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert call("GET", f"{url}/v1/faults")[0] == 200
        assert opened[0].recv(1) == b""
    finally:
        for each in opened:
            each.close()


@pytest.mark.parametrize(
    ("name", "sent", "answered"),
    [
        ("REQUEST_S", b"GET /v1/fau", 408),
        ("REQUEST_S", b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", 408),
        ("IDLE_S", b"", 0),
        ("IDLE_S", HEAD + b"\r\n", 200),
    ],
)
def test_a_slow_client_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch, name: str, sent: bytes, answered: int
) -> None:
    monkeypatch.setattr(http_server, name, 0.4)
    assert status_of(raw(url, sent, end=False)) == answered


def test_a_request_that_comes_byte_by_byte_has_one_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), DEADLINE_S) as peer:
        peer.settimeout(0.01)
        for _ in range(3_000):
            peer.sendall(b"x")
            try:
                answer = peer.recv(65_536)
                break
            except TimeoutError:
                pass
        assert status_of(answer) == 408


def test_a_client_that_sends_on_while_it_waits_is_closed(kafka: Broker, url: str) -> None:
    fault = kafka.faults.on("EndTxn", strict=False).drop()
    wait = b"GET /v1/faults/%d?hits=1&timeout=100 HTTP/1.1\r\nHost: localhost\r\n\r\n" % fault.number
    assert raw(url, wait + b"x" * 1_000_000, end=False) == b""


def test_a_client_that_reads_no_answer_is_closed_and_its_later_requests_wait(
    kafka: Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks 200 times for an answer of 100 kB, more than the kernel keeps for it."""
    monkeypatch.setattr(http_server, "IDLE_S", 0.5)
    assert call("POST", f"{url}/v1/faults", [{"api": "EndTxn", "drop": True, "strict": False}] * 1_000)[0] == 201
    answered: list[str] = []
    answer = AdminRoutes.answer

    async def counted(self: AdminRoutes, method: str, target: str, body: bytes) -> tuple[int, Any]:
        answered.append(target)
        return await answer(self, method, target, body)

    monkeypatch.setattr(AdminRoutes, "answer", counted)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        peer.sendall((HEAD + b"\r\n") * 200)
        wait_until(lambda: bool(answered) and connections(kafka) == 0)
    assert len(answered) < 200


def connections(kafka: Broker) -> int:
    async def count() -> int:
        server = kafka.admin_port().server
        return len(server.connections) + len(server.clients) + len(server.scope)

    return kit_thread.wait(count(), DEADLINE_S)


def answers(kafka: Broker) -> bool:
    """Whether a request is being answered."""

    async def asked() -> bool:
        return not all(each.waits_for_client for each in kafka.admin_port().server.connections)

    return kit_thread.wait(asked(), DEADLINE_S)


def test_a_wait_ends_with_its_client(kafka: Broker, url: str) -> None:
    fault = kafka.faults.on("EndTxn", strict=False).drop()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), DEADLINE_S) as peer:
        peer.sendall(b"GET /v1/faults/%d?hits=1&timeout=100 HTTP/1.1\r\nHost: localhost\r\n\r\n" % fault.number)
        wait_until(lambda: answers(kafka))
    wait_until(lambda: connections(kafka) == 0)


def test_what_a_client_began_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(admin_port=0) as kafka:
        began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
        restart = Core.restart

        async def slowly(self: Core, broker_id: int) -> None:
            began.set()
            await asyncio.get_running_loop().run_in_executor(None, goes_on.wait, DEADLINE_S)
            await restart(self, broker_id)
            ended.set()

        monkeypatch.setattr(Core, "restart", slowly)
        with socket.create_connection(("127.0.0.1", int(kafka.admin_url.rpartition(":")[2])), DEADLINE_S) as peer:
            peer.sendall(b"POST /v1/brokers/1/restart HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert began.wait(DEADLINE_S)
        wait_until(lambda: connections(kafka) == 1)  # the work alone
        goes_on.set()
        assert ended.wait(DEADLINE_S)
        assert kafka.broker(1).state == "running"


def test_an_error_of_the_kit_is_answered(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> object:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("barnabas.testing.admin_port.AdminRoutes.answer", broken)
    assert call("GET", f"{url}/v1/faults") == (500, {"error": "ZeroDivisionError: a bug"})
    assert "GET" in caplog.text


@pytest.mark.parametrize("port", [-1, 65_536, True, "8474", 1.5, "0.0.0.0:0"])
def test_a_wrong_port_is_refused(port: Any) -> None:
    with pytest.raises(KitError, match=r"a port of 127\.0\.0\.1, 1 to 65535, or 0 for a free one"):
        Broker(admin_port=port)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        kafka = Broker(admin_port=port)
        with pytest.raises(
            KitError, match=rf"admin_port={port}: cannot bind 127.0.0.1:{port}: address already in use; choose"
        ):
            kafka.start()
    with kafka:
        assert kafka.admin_url == f"http://127.0.0.1:{port}"


def test_a_kafka_of_others_has_none(kafka: Broker) -> None:
    with Cluster.connect(kafka.bootstrap_servers) as running, pytest.raises(NotPossible, match="the admin port"):
        running.wait(running.open_admin_port(0))


# -- hostile bytes

VALID = [
    b"GET /v1/faults HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/faults/1?hits=0&timeout=0.01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Length: 45\r\n\r\n"
    + b'{"api":"EndTxn","drop":true,"strict":false}  ',
    b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[1,2]\r\n0\r\n\r\n",
    b"DELETE /v1/faults HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/brokers/2/pause HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


def hostile(rng: random.Random) -> bytes:
    """Requests with bytes changed, cut out, doubled or put in between."""
    found = bytearray(b"".join(rng.choices(VALID, k=rng.randrange(1, 4))))
    for _ in range(rng.randrange(6)):
        at, size = rng.randrange(len(found)), rng.randrange(1, 20)
        match rng.randrange(4):
            case 0:
                found[at] = rng.randrange(256)
            case 1:
                del found[at : min(at + size, len(found) - 1)]
            case 2:
                found[at:at] = found[at : at + size] * rng.randrange(1, 300)
            case 3:
                found[at:at] = rng.choice(
                    [b"\r\n", b"\0", b"\r\n\r\n", rng.randbytes(size), b"Content-Length: 99999999999\r\n"]
                )
    return bytes(found)


def test_hostile_bytes_disturb_no_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each gets an answer or the end of its connection, the brokers answer meanwhile, and nothing is left."""
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    monkeypatch.setattr(http_server, "LINGER_S", 0.1)
    caplog.set_level(logging.ERROR)
    rng, url = random.Random(13), broker.admin_url
    samples = [hostile(rng) for _ in range(600)]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(raw, url, each) for each in samples]
        while not all(each.done() for each in running):
            assert code(broker, "observer") == 0
        answers = [each.result(DEADLINE_S) for each in running]
    assert {status_of(each) for each in answers} >= {200, 400, 404}
    assert not [each for each in answers if status_of(each) == 500]
    wait_until(lambda: connections(broker) == 0)
    assert call("DELETE", f"{url}/v1/faults")[0] == 200
    assert broker.broker(1).state == "running"
    assert not caplog.records
