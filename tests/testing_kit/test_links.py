"""Cuts and slow links of the test kit, in both modes: what brokers and real clients see of them."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from barnabas.client import Consumer, Producer
from barnabas.testing import Broker, Cluster, KitError, NotPossible
from barnabas.testing.backend import Mode
from barnabas.testing.namespace import Namespace
from tests.support.elsewhere import wait_until
from tests.support.kit_modes import MODES, THREADS

LIMIT_S = 60
EARLY_S = 0.005  # uvloop counts whole milliseconds: a timer may fire that much early


@pytest.fixture(params=THREADS)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


@pytest.fixture(params=THREADS, scope="module")
def three(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(brokers=3, mode=request.param, config={"broker.session.timeout.ms": 3000}) as kafka:
        yield kafka


@pytest.fixture
def healed(three: Cluster) -> Iterator[Cluster]:
    yield three
    three.heal()


async def values(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    async with (
        asyncio.timeout(LIMIT_S),
        Consumer(topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        return [(await consumer.getone()).value or b"" for _ in range(count)]


def api_versions(client_id: bytes, correlation: int = 1) -> bytes:
    """A request ApiVersions 0."""
    body = struct.pack(">hhih", 18, 0, correlation, len(client_id)) + client_id
    return struct.pack(">i", len(body)) + body


def connect(kafka: Cluster, broker_id: int) -> socket.socket:
    broker = kafka.broker(broker_id)
    return socket.create_connection((broker.host, broker.port), timeout=60)


def answer(connection: socket.socket) -> bytes:
    """The next whole answer."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        piece = connection.recv(65_536)
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


# -- between brokers


def test_an_isolated_controller_is_replaced(healed: Cluster) -> None:
    kafka = healed
    before = kafka.controller()
    kafka.isolate(before)

    wait_until(lambda: kafka.controller() not in (before, -1), "another controller")
    assert kafka.create_topic(f"after-{before}-{kafka.mode}") in kafka.topics()  # the others go on
    kafka.heal()
    assert kafka.create_topic(f"healed-{before}-{kafka.mode}")  # returns when all three know it


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_cut_in_each_direction_fences_the_broker(healed: Cluster, direction: str) -> None:
    """The controller misses the heartbeats of a broker whose requests, or whose answers, do not arrive."""
    kafka = healed
    controller = kafka.controller()
    [victim, other] = [each.id for each in kafka.brokers if each.id != controller]

    def alive() -> list[int]:
        found: list[int] = kafka.wait(kafka.core().command(controller, "live_brokers", {}))
        return found

    with kafka.isolate(victim, direction=direction):  # type: ignore[arg-type]  # from the list above
        wait_until(lambda: victim not in alive(), f"broker {victim} is fenced")
        assert other in alive()
    wait_until(lambda: victim in alive(), f"broker {victim} is back")


def test_a_restarted_broker_is_still_cut(healed: Cluster) -> None:
    kafka = healed
    controller = kafka.controller()
    [one, two] = [each.id for each in kafka.brokers if each.id != controller]
    topic = kafka.create_topic(f"restarted-{kafka.mode}")
    kafka.move_leader(topic, to=one)
    cut = kafka.partition([one], [two])
    kafka.kill(two)
    kafka.restart(two)  # over the controller, which it reaches
    known = kafka.wait(kafka.core().partitions(topic))[0]
    assert two not in known["isr"]  # it cannot fetch from the leader
    cut.heal()
    wait_until(lambda: two in kafka.wait(kafka.core().partitions(topic))[0]["isr"], f"broker {two} is in sync again")


def test_a_broker_that_is_cut_off_is_not_restarted(healed: Cluster) -> None:
    with healed.isolate(2), pytest.raises(KitError, match=r"broker 2 is cut off from the others.*heal\(\) first"):
        healed.restart(2)


def test_a_paused_broker_gets_the_cut_when_it_continues(healed: Cluster) -> None:
    kafka = healed
    controller = kafka.controller()
    victim = next(each.id for each in kafka.brokers if each.id != controller)
    kafka.pause(victim)
    kafka.isolate(victim)
    kafka.resume(victim)

    def alive() -> bool:
        return victim in kafka.wait(kafka.core().command(controller, "live_brokers", {}))

    wait_until(lambda: not alive(), "it is fenced")
    kafka.heal()
    wait_until(alive, "it is back")


# -- clients


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_a_cut_client_hears_nothing_and_is_served_after_it(mode: Mode) -> None:
    with Broker(mode=mode) as kafka, connect(kafka, 1) as before, connect(kafka, 1) as other:
        before.sendall(api_versions(b"billing-1"))
        answer(before)
        with kafka.partition(["client:billing-*"], [1]), connect(kafka, 1) as new:
            for each in (before, new):
                each.sendall(api_versions(b"billing-1", 2))
                each.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    each.recv(1)
                each.settimeout(60)
            other.sendall(api_versions(b"audit"))
            assert answer(other)
            kafka.heal()
            assert [answer(each)[4:8] for each in (before, new)] == [struct.pack(">i", 2)] * 2


def test_an_answer_is_lost_in_one_direction(mode: Mode) -> None:
    """The request arrives and has its effect; its answer does not."""
    with Broker(mode=mode, topics={"orders": 1}) as kafka:

        async def write() -> None:
            async with Producer(bootstrap_servers=kafka.bootstrap_servers, client_id="billing") as producer:
                await producer.send_and_wait("orders", b"tea")
                cut = await kafka.aio.partition(1, "client:billing", direction="out")
                lost = asyncio.get_running_loop().create_task(producer.send_and_wait("orders", b"milk"))
                assert await values(kafka.bootstrap_servers, "orders", 2) == [b"tea", b"milk"]
                assert not lost.done()
                async with cut:
                    pass
                await asyncio.wait_for(lost, LIMIT_S)

        asyncio.run(write())
        assert asyncio.run(values(kafka.bootstrap_servers, "orders", 2)) == [b"tea", b"milk"]


def asked(connection: socket.socket, count: int = 1) -> float:
    """Seconds for some requests, one after the other."""
    before = time.monotonic()
    for number in range(count):
        connection.sendall(api_versions(b"slow", number))
        answer(connection)
    return time.monotonic() - before


def test_latency_and_bandwidth_take_their_time(mode: Mode) -> None:
    with Broker(mode=mode) as kafka, connect(kafka, 1) as connection:
        size = len(answer_of(connection))
        with kafka.link("clients", 1).latency(0.05, jitter=0.01):
            assert asked(connection, 3) >= 3 * 2 * (0.04 - EARLY_S)
        with kafka.link("clients", 1, direction="in").latency(0.1):
            assert asked(connection) >= 0.1 - EARLY_S
        with kafka.link("client:slow", 1).bandwidth(size / 1000 / 0.3):  # an answer takes 0.3 s
            assert asked(connection) >= 0.3 - EARLY_S


def answer_of(connection: socket.socket) -> bytes:
    connection.sendall(api_versions(b"slow"))
    return answer(connection)


def test_a_sliced_answer_arrives_whole(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka, connect(kafka, 1) as connection:
        whole = answer_of(connection)
        with kafka.link("clients", 1).slicer(7, 6):
            assert answer_of(connection) == whole

            async def write() -> None:
                async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
                    await producer.send_and_wait("orders", b"tea" * 1000)

            asyncio.run(write())
            assert asyncio.run(values(kafka.bootstrap_servers, "orders", 1)) == [b"tea" * 1000]


def test_connections_end_by_reset_limit_and_slowly(mode: Mode) -> None:
    with Broker(mode=mode) as kafka:
        with connect(kafka, 1) as connection:
            size = len(answer_of(connection))
            link = kafka.link("client:slow", 1).reset_peer(60)
            assert len(answer_of(connection)) == size
            before = time.monotonic()
            link.reset_peer(0.3)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
            assert time.monotonic() - before >= 0.3 - EARLY_S
            link.remove()
        with connect(kafka, 1) as connection, kafka.link("clients", 1, direction="in").limit_data(size + 5):
            assert len(answer_of(connection)) == size
            connection.sendall(api_versions(b"slow"))
            pieces = b"".join(iter(lambda: connection.recv(65_536), b""))
            assert len(pieces) == 5
        with connect(kafka, 1) as connection, kafka.link("clients", 1, direction="in").limit_data(2 * size) as link:
            assert len(answer_of(connection)) == size
            link.limit_data(size + 5)  # counts from here
            assert len(answer_of(connection)) == size
            connection.sendall(api_versions(b"slow"))
            assert len(b"".join(iter(lambda: connection.recv(65_536), b""))) == 5
        with connect(kafka, 1) as connection, kafka.link("clients", 1, direction="in").slow_close(0.3):
            before = time.monotonic()
            connection.sendall(struct.pack(">i", -1))  # the broker closes
            assert connection.recv(1) == b""
            assert time.monotonic() - before >= 0.3 - EARLY_S


def test_a_killed_broker_ends_its_cut_connections(mode: Mode) -> None:
    with Broker(mode=mode) as kafka, connect(kafka, 1) as connection:
        answer_of(connection)
        kafka.partition(1, "clients")
        kafka.kill()
        kafka.restart()
        with connect(kafka, 1) as new:
            new.sendall(api_versions(b"slow"))
            new.settimeout(0.3)
            with pytest.raises(TimeoutError):  # the cut is still there
                new.recv(1)


def test_the_end_of_a_test_undoes_everything_on_shared_brokers(three: Cluster) -> None:
    namespace = Namespace(three)
    namespace.open()
    three.isolate(2)
    three.link("clients", 1).latency(60)
    three.disk(3).fail("write", times=None, path="nothing-0/*")
    namespace.close("of nobody")
    with connect(three, 1) as connection:
        assert answer_of(connection)
    assert three.create_topic(f"undone-{three.mode}")


# -- what is refused


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda kafka: kafka.partition([1], [4]), "broker 4 is unknown; this cluster has brokers 1, 2, 3"),
        (lambda kafka: kafka.partition([1, 2], [2, 3]), "broker 2 is on both sides"),
        (lambda kafka: kafka.partition([], [1]), "a side of a partition is empty"),
        (lambda kafka: kafka.partition("clients", "client:a"), "at least one side of a link is a broker"),
        (lambda kafka: kafka.partition([1], [2], direction="outt"), "unknown direction 'outt'; did you mean 'out'"),
        (lambda kafka: kafka.isolate(True), "broker True is unknown"),
        (lambda kafka: kafka.link(1, 1), "a link from broker 1 to itself"),
        (lambda kafka: kafka.link("client", 1), "unknown side of a link 'client'; did you mean 'clients'"),
        (lambda kafka: kafka.link("client:", 1), "a pattern of client ids"),
        (lambda kafka: kafka.link(1, 2).latency(-1), "latency: -1 is not possible"),
        (lambda kafka: kafka.link(1, 2).latency("1"), "latency: '1' is not possible"),
        (lambda kafka: kafka.link(1, 2).latency(float("nan")), "latency: nan is not possible"),
        (lambda kafka: kafka.link(1, 2).latency(0.1, jitter=0.2), "the jitter is at most the latency"),
        (lambda kafka: kafka.link(1, 2).bandwidth(0), "bandwidth: 0 is not possible"),
        (lambda kafka: kafka.link(1, 2).limit_data(1.5), "limit_data: 1.5 is not possible"),
        (lambda kafka: kafka.link(1, 2).slicer(10, 10), "size_variation: 10 is not possible"),
        (lambda kafka: kafka.kill(1, lose="pagecache"), "unknown loss 'pagecache'; did you mean 'page_cache'"),
    ],
)
def test_what_cannot_be_is_refused(three: Cluster, written: object, text: str) -> None:
    with pytest.raises(KitError, match=text):
        written(three)  # type: ignore[operator]  # a function
    wait_until(lambda: three.wait(three.core().command(1, "live_brokers", {})) == [1, 2, 3], "all brokers live")


def test_one_broker_has_no_other_to_be_cut_off_from() -> None:
    with Broker() as kafka, pytest.raises(KitError, match="the only broker of this cluster"):
        kafka.isolate(1)


def test_a_remote_kafka_has_no_links() -> None:
    with Broker() as kafka, Cluster.connect(kafka.bootstrap_servers) as remote:
        for call in (lambda: remote.partition([1], "clients"), remote.heal, lambda: remote.link("clients", 1)):
            with pytest.raises(NotPossible, match="mode 'remote'"):
                call()
