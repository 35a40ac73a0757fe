"""The handles of the test kit: the same calls on brokers in threads and in processes, and what is left for a Kafka of others."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from barnabas.client import Consumer, Producer
from barnabas.testing import Broker, Cluster, KitError, KitTimeout, NotPossible
from barnabas.testing.backend import Mode
from barnabas.testing.clients import KitProducer
from tests.support.kit_modes import MODES, THREADS


async def _write(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    async with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def _read(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    async with (
        asyncio.timeout(60),
        Consumer(topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        return [(await consumer.getone()).value or b"" for _ in range(count)]


@pytest.fixture(params=THREADS)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


@pytest.fixture(params=THREADS, scope="module")
def three(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(brokers=3, mode=request.param) as kafka:
        yield kafka


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_one_broker_serves_and_keeps_its_records_over_kills(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 2}) as kafka:
        port = kafka.port
        asyncio.run(_write(kafka.bootstrap_servers, "orders", b"tea", b"milk"))
        kafka.kill()
        assert kafka.brokers[0].state == "down"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=30)
        kafka.restart()
        assert (kafka.port, kafka.brokers[0].state) == (port, "running")
        assert sorted(asyncio.run(_read(kafka.bootstrap_servers, "orders", 2))) == [b"milk", b"tea"]
        kafka.stop_broker()
        kafka.restart()
        assert kafka.topics() == ["orders"]


@pytest.mark.parametrize("three", MODES, indirect=True, scope="module")
def test_a_killed_broker_comes_back_in_sync(three: Cluster) -> None:
    topic = three.create_topic("kept", partitions=3)
    asyncio.run(_write(three.bootstrap_servers, topic, b"1"))
    victim = three.leader(topic, 0)
    three.kill(victim)
    assert [each.state for each in three.brokers if each.id != victim] == ["running", "running"]
    asyncio.run(_write(three.bootstrap_servers, topic, b"2"))
    three.restart(victim)
    assert [each.state for each in three.brokers] == ["running"] * 3
    assert sorted(asyncio.run(_read(three.bootstrap_servers, topic, 2))) == [b"1", b"2"]


def test_a_paused_broker_accepts_and_does_not_answer(three: Cluster) -> None:
    broker = three.broker(2)
    broker.pause()
    assert broker.state == "paused"
    with socket.create_connection((broker.host, broker.port), timeout=30) as connection:
        connection.sendall(bytes.fromhex("0000000a00120000000000010000"))  # ApiVersions 0, correlation id 1
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        broker.resume()
        connection.settimeout(60)
        assert connection.recv(1)
    assert str(broker.state) == "running"


def test_a_paused_broker_can_be_killed(three: Cluster) -> None:
    three.pause(3)
    three.kill(3)
    assert three.broker(3).state == "down"
    three.restart(3)
    assert three.broker(3).state == "running"


def test_a_leader_moves_to_the_named_broker(three: Cluster) -> None:
    topic = three.create_topic("moved")
    before = three.leader(topic)
    to = three.move_leader(topic)
    assert to != before
    assert three.leader(topic) == to
    assert three.move_leader(topic, 0, to=before) == before
    assert three.leader(topic) == before


def test_a_rolling_restart_loses_nothing(three: Cluster) -> None:
    topic = three.create_topic("rolled", config={"min.insync.replicas": 2})
    asyncio.run(_write(three.bootstrap_servers, topic, b"before"))
    pids = [each.pid for each in three.brokers]
    three.rolling_restart()
    assert three.mode == "thread" or all(each.pid != pid for each, pid in zip(three.brokers, pids, strict=True))
    assert asyncio.run(_read(three.bootstrap_servers, topic, 1)) == [b"before"]


def test_the_controller_is_one_of_the_brokers(three: Cluster) -> None:
    assert three.controller() in {1, 2, 3}


def test_a_deleted_topic_is_gone_on_every_broker(three: Cluster) -> None:
    three.create_topic("short-lived")
    three.delete_topics("short-lived")
    with pytest.raises(KitError, match="unknown topic 'short-lived'"):
        three.leader("short-lived")


async def test_every_method_is_a_coroutine_too(mode: Mode) -> None:
    async with Broker(mode=mode) as kafka:
        assert await kafka.aio.create_topic("orders", partitions=2) == "orders"
        await kafka.aio.kill()
        await kafka.aio.restart()
        await kafka.aio.pause()
        await kafka.aio.resume()
        assert await kafka.aio.topics() == ["orders"]
        assert await kafka.aio.leader("orders", 1) == 1
        await _write(kafka.bootstrap_servers, "orders", b"tea")
        assert await _read(kafka.bootstrap_servers, "orders", 1) == [b"tea"]


def test_aio_has_every_method_of_a_cluster() -> None:
    from barnabas.testing.cluster import ClusterAio

    not_waiting = {
        "admin_url",
        "aio",
        "bootstrap_servers",
        "broker",
        "brokers",
        "client_settings",
        "clock",
        "connect",
        "faults",
        "history",
        "mode",
        "disk",
        "expect_end",
        "group",
        "link",
    }
    public, coroutines = (
        {
            name
            for name, value in vars(each).items()
            if not name.startswith("_") and not (value.__doc__ or "").startswith("For the kit")
        }
        for each in (Cluster, ClusterAio)
    )
    assert coroutines == public - not_waiting


def test_a_coroutine_on_trio() -> None:
    trio = pytest.importorskip("trio")

    async def use() -> list[str]:
        async with Broker(topics={"orders": 1}) as kafka:
            return await kafka.aio.topics()

    assert trio.run(use) == ["orders"]


# -- a Kafka of others


def test_a_running_kafka_is_used_as_far_as_it_can_be() -> None:
    with Cluster(2) as started, Cluster.connect(started.bootstrap_servers) as kafka:
        assert (kafka.mode, [each.port for each in kafka.brokers]) == (
            "remote",
            [each.port for each in started.brokers],
        )
        kafka.create_topic("orders", partitions=2, replication_factor=2)
        assert started.topics() == kafka.topics() == ["orders"]
        to = kafka.move_leader("orders", 1)
        assert started.leader("orders", 1) == kafka.leader("orders", 1) == to
        assert kafka.controller() == started.controller()
        impossible: list[Callable[[], object]] = [
            lambda: kafka.kill(1),
            lambda: kafka.pause(1),
            lambda: kafka.restart(1),
            kafka.rolling_restart,
        ]
        for what in impossible:
            with pytest.raises(NotPossible, match=r"mode 'remote'.*Modes 'thread' and 'process' can do it"):
                what()
    assert started.mode == "thread"


def test_nothing_answers() -> None:
    with pytest.raises(KitError, match=r"no Kafka answers at bootstrap servers '127\.0\.0\.1:1'"):
        Cluster.connect("127.0.0.1:1", timeout=2).start()


# -- wrong use


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Cluster(0), "brokers=0: 1 to 9 are possible"),
        (lambda: Cluster(port=-1), "port=-1: write a port number, 1 to 65535, or 0"),
        (lambda: Cluster(timeout=0), "timeout=0: write a number of seconds above 0"),
        (lambda: Cluster.connect("127.0.0.1:1", timeout=cast(Any, "1")), "timeout='1'"),
        (lambda: Broker(topics=cast(Any, ["orders"])), r"topics=\['orders'\]: write names and numbers of partitions"),
        (lambda: Broker(topics={"orders": 0}), r"topics=\{'orders': 0\}"),
        (lambda: Cluster(mode=cast(Any, "proces")), "unknown mode 'proces'; did you mean 'process'"),
        (lambda: Cluster(config=cast(Any, ["a=b"])), "write a dict of Kafka's settings"),
        (lambda: Cluster(port=65_535, brokers=2).start(), "not all within 1 to 65535"),
        (lambda: Cluster(port=65_536), "port=65536: write a port number, 1 to 65535, or 0"),
        (lambda: Cluster(timeout=float("nan")), "timeout=nan: write a number of seconds above 0, at most 86,400"),
        (lambda: Cluster(timeout=float("inf")), "timeout=inf: write a number of seconds above 0"),
        (lambda: Broker(topics={"orders": True}), r"topics=\{'orders': True\}"),
        (lambda: Broker(topics={"a b": 1}), "topics: .*'a b' is not a valid topic name"),
        (lambda: Broker(topics=cast(Any, {1: 1})), "topics: .*a topic name must be a str, not 1"),
        (lambda: Broker(security_protocol="ssl"), "unknown security_protocol 'ssl'; did you mean 'SSL'"),
        (lambda: Broker(config={"node.id": 3}), r"config\['node.id'\] = '3': the kit sets it itself: .*; remove it"),
        (lambda: Broker(config={"log.dirs": "/a,/b"}), r"config\['log.dirs'\].*; log_dirs=2 gives each broker two"),
        (lambda: Broker(log_dirs=0), "log_dirs=0: write the number of log directories of each broker, 1 to 9"),
        (lambda: Broker(log_dirs=True), "log_dirs=True: write the number of log directories"),
        (lambda: Broker(config={"retention.ms": 3}), "brokers have 'log.retention.ms'"),
        (lambda: Broker(config={"num.partition": 3}), "'num.partition'.*did you mean 'num.partitions'"),
        (lambda: Broker(config={"num.partitions": "x"}), "num.partitions"),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones(make, text: str) -> None:  # type: ignore[no-untyped-def]  # a table of lambdas
    with pytest.raises(KitError, match=text):
        make()


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"Cluster\(\): unknown option 'broker'; did you mean 'brokers'\?"):
        Cluster(broker=3)  # type: ignore[call-arg]  # wrong on purpose


def test_a_port_that_is_taken_is_named(mode: Mode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(KitError, match=f"port {port} on 127.0.0.1 is in use: choose another one, or port=0"):
            Broker(mode=mode, port=port).start()


def test_wrong_calls_name_what_is_there(three: Cluster) -> None:
    three.create_topic("known", partitions=2)
    with pytest.raises(KitError, match="broker 7 is unknown; this cluster has brokers 1, 2, 3"):
        three.kill(7)
    with pytest.raises(KitError, match="did you mean 'known'"):
        three.leader("knwon")
    with pytest.raises(KitError, match="it has partitions 0 to 1"):
        three.leader("known", 2)
    with pytest.raises(KitError, match=r"did you mean 'cleanup\.policy'"):
        three.create_topic("x", config={"cleanup.polciy": "compact"})
    with pytest.raises(KitError, match="topic 'known' was not created"):
        three.create_topic("known")
    with pytest.raises(KitError, match="unknown topic 'knwon'; did you mean 'known'"):
        three.delete_topics("knwon")
    with pytest.raises(KitError, match="broker 7 has no replica of known-0; its replicas are on brokers"):
        three.move_leader("known", to=7)


def test_calls_that_no_broker_can_answer_fail_at_once() -> None:
    with Broker() as kafka:
        with pytest.raises(KitError, match="unknown topic 'orders'; there is none"):
            kafka.leader("orders")
        for stop, state in ((kafka.pause, "paused"), (kafka.kill, "down")):
            stop()
            for call in (kafka.topics, lambda: kafka.create_topic("orders"), lambda: kafka.leader("orders")):
                with pytest.raises(KitError, match=f"no broker of this cluster runs: broker 1 is {state}") as refused:
                    call()
                assert not isinstance(refused.value, TimeoutError)


def test_a_cluster_that_was_not_started_says_so() -> None:
    with pytest.raises(KitError, match="not started: use `with`, or call start"):
        Cluster().create_topic("x")
    with pytest.raises(KitError, match="bootstrap_servers: the Broker is not started"):
        _ = Broker().bootstrap_servers


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # the fork of the application
def test_a_forked_child_cannot_use_the_clients_of_its_parent() -> None:
    with Broker(topics={"orders": 1}) as kafka:
        producer = KitProducer(lambda: Producer(bootstrap_servers=kafka.bootstrap_servers))
        child = os.fork()
        if child == 0:
            try:
                producer.send("orders", b"x")
            except KitError as error:
                os._exit(0 if "cannot be used in its forked child" in str(error) else 2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send("orders", b"y").offset == 0
        assert producer.close()


def _use_in_a_child(kafka: Cluster, told: multiprocessing.connection.Connection) -> None:
    try:
        kafka.create_topic("x")
    except KitError as error:
        told.send(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # the fork of the application
def test_a_forked_child_is_refused_and_ends_nothing(mode: Mode) -> None:
    with Broker(mode=mode) as kafka:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_use_in_a_child, args=(kafka, theirs))
        child.start()
        assert ours.poll(60)
        assert f"was started by process {os.getpid()} and cannot be used in its forked child" in ours.recv()
        child.join(60)
        assert child.exitcode == 0
        kafka.create_topic("still-there")


def test_a_call_that_takes_too_long_names_what_was_missing() -> None:
    with Cluster(2) as kafka:
        kafka.pause(2)
        kafka.core().timeout_s = 0.5
        with pytest.raises(KitTimeout, match=r"the creation of topic 'x' took longer than 0.5 s.*broker 2 is paused"):
            kafka.create_topic("x", replication_factor=2)
        kafka.core().timeout_s = 30.0
        kafka.resume(2)


def test_the_port_of_a_broker_that_is_down_is_given_to_nobody(mode: Mode) -> None:
    with Broker(mode=mode) as kafka:
        kafka.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", kafka.port))


def test_python_m_barnabas_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "barnabas", "--version"], capture_output=True, text=True, check=True)
    assert "hot loops" in shown.stdout


def test_brokers_that_have_all_ended_start_in_one_call(mode: Mode) -> None:
    with Cluster(3, mode=mode, topics={"orders": 3}) as kafka:
        for each in kafka.brokers:
            each.kill()
        kafka.restart()
        assert [each.state for each in kafka.brokers] == ["running"] * 3
        assert kafka.topics() == ["orders"]
        kafka.kill(1)
        kafka.pause(2)
        with pytest.raises(KitError, match="broker 4 is unknown"):
            kafka.restart(1, 2, 4)
        kafka.restart(1, 2)
        assert [each.state for each in kafka.brokers] == ["running"] * 3


def test_the_directory_and_the_log_of_a_broker() -> None:
    with Broker(mode="process", topics={"orders": 1}) as kafka:
        one = kafka.broker(1)
        assert (one.directory / "orders-0").is_dir()
        before = one.log
        assert "INFO kafka." in before
        kafka.restart()
        assert one.log.startswith(before)
        assert len(one.log) > len(before)
    with Broker() as kafka, pytest.raises(NotPossible, match="mode 'thread' keeps the files of a broker in memory"):
        _ = kafka.broker(1).log
    with Broker() as kafka, pytest.raises(NotPossible, match="mode 'remote'"):
        _ = Cluster.connect(kafka.bootstrap_servers).start().broker(1).directory
