"""Failing disks and lost page caches of the test kit, in both modes: brokers do what Kafka's do, and clients see it."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterator

import pytest

from barnabas.client import Acks, Consumer, CorruptRecords, KafkaError, Producer
from barnabas.protocol.messages.admin import DescribeLogDirsRequest
from barnabas.testing import Broker, Cluster, KitError, NotPossible
from barnabas.testing.backend import Mode
from tests.support.elsewhere import wait_until
from tests.support.kit_modes import MODES, THREADS
from tests.support.oracle.wire import Wire

LIMIT_S = 60


@pytest.fixture(params=THREADS)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


@pytest.fixture(params=THREADS)
def three(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(brokers=3, mode=request.param) as kafka:
        yield kafka


async def write(kafka: Cluster, topic: str, *values: bytes, acks: Acks = "all", timeout_ms: int = 120_000) -> None:
    async with Producer(
        bootstrap_servers=kafka.bootstrap_servers,
        acks=acks,
        delivery_timeout_ms=timeout_ms,
        request_timeout_ms=timeout_ms,
    ) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)


async def read(kafka: Cluster, topic: str, count: int) -> list[bytes]:
    async with (
        asyncio.timeout(LIMIT_S),
        Consumer(topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        return [(await consumer.getone()).value or b"" for _ in range(count)]


# -- lost page caches


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_a_record_of_one_broker_is_lost_with_its_page_cache(mode: Mode) -> None:
    """acks=1, one replica, no flush: the record was acknowledged, and a power loss takes it."""
    with Broker(mode=mode, topics={"lost": 1}) as kafka:
        kafka.create_topic("synced", config={"flush.messages": 1})
        asyncio.run(write(kafka, "lost", b"1", b"2", acks=1))
        asyncio.run(write(kafka, "synced", b"1", b"2", acks=1))
        kafka.stop_broker()  # a clean stop syncs
        kafka.restart()
        asyncio.run(write(kafka, "lost", b"3", acks=1))
        asyncio.run(write(kafka, "synced", b"3", acks=1))
        kafka.kill(lose="page_cache")
        kafka.restart()
        asyncio.run(write(kafka, "lost", b"4", acks=1))
        asyncio.run(write(kafka, "synced", b"4", acks=1))
        assert asyncio.run(read(kafka, "lost", 3)) == [b"1", b"2", b"4"]  # 3 is gone
        assert asyncio.run(read(kafka, "synced", 4)) == [b"1", b"2", b"3", b"4"]


def test_what_is_down_loses_nothing_more(mode: Mode) -> None:
    with Broker(mode=mode) as kafka:
        kafka.kill()
        with pytest.raises(KitError, match=r"broker 1 is down.*restart it first"):
            kafka.kill(lose="page_cache")


def test_a_process_that_is_paused_cannot_tell_what_it_has_not_synced() -> None:
    with Broker(mode="process") as kafka:
        kafka.pause()
        with pytest.raises(KitError, match=r"broker 1 is paused.*resume it first"):
            kafka.kill(lose="page_cache")


# -- failing calls


@pytest.mark.parametrize("three", MODES, indirect=True)
def test_a_broker_whose_disk_fails_hands_over_and_stops(three: Cluster) -> None:
    topic = three.create_topic("orders", config={"flush.messages": 1, "min.insync.replicas": 2})
    victim = three.leader(topic)
    fault = three.disk(victim).fail("fsync", errno.EIO, path="orders-0/*")
    asyncio.run(write(three, topic, b"tea"))  # the next leader takes it
    assert fault.hits == 1
    assert fault.calls[0]["path"].startswith("orders-0/")
    wait_until(lambda: three.broker(victim).state == "down", f"broker {victim} has stopped")
    assert three.leader(topic) != victim
    three.restart(victim)
    assert three.broker(victim).state == "running"
    assert asyncio.run(read(three, topic, 1)) == [b"tea"]


def test_a_full_disk_stops_its_broker_until_it_has_room(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        asyncio.run(write(kafka, "orders", b"1"))
        kafka.disk(1).full()
        with pytest.raises(KafkaError):
            asyncio.run(write(kafka, "orders", b"2", timeout_ms=2_000))
        wait_until(lambda: kafka.broker(1).state == "down", "the broker has stopped")
        kafka.disk(1).free()
        kafka.restart()
        asyncio.run(write(kafka, "orders", b"3"))
        assert asyncio.run(read(kafka, "orders", 2)) == [b"1", b"3"]


def test_a_fault_with_a_path_leaves_other_files_alone(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1, "audit": 1}) as kafka:
        with kafka.disk(1).fail("write", errno.EIO, path="audit-0/*", times=None) as fault:
            asyncio.run(write(kafka, "orders", b"1"))
            assert fault.hits == 0
        asyncio.run(write(kafka, "audit", b"1"))
        assert kafka.broker(1).state == "running"


def test_a_read_that_fails_is_served_by_the_next_leader(three: Cluster) -> None:
    topic = three.create_topic("orders")
    asyncio.run(write(three, topic, b"tea", b"milk"))
    victim = three.leader(topic)
    three.restart(victim)  # so that it has nothing in memory
    three.move_leader(topic, to=victim)
    fault = three.disk(victim).fail("read", errno.EIO, path="orders-0/*.log")
    assert asyncio.run(read(three, topic, 2)) == [b"tea", b"milk"]
    assert fault.hits == 1
    assert fault.calls[0]["call"] == "read"
    wait_until(lambda: three.broker(victim).state == "down", f"broker {victim} has stopped")
    assert three.leader(topic) != victim


def test_a_segment_that_cannot_be_opened_fails_the_write(mode: Mode) -> None:
    with Broker(mode=mode) as kafka:
        kafka.create_topic("orders", config={"segment.bytes": 1 << 20})
        values = [bytes([65 + number]) * 400_000 for number in range(5)]
        fault = kafka.disk(1).fail("open", errno.EIO, path="orders-0/*.log")
        with pytest.raises(KafkaError):
            asyncio.run(write(kafka, "orders", *values, timeout_ms=3_000))
        assert fault.hits == 1
        wait_until(lambda: kafka.broker(1).state == "down", "the broker has stopped")
        kafka.restart()
        asyncio.run(write(kafka, "orders", b"the end"))
        found = asyncio.run(read(kafka, "orders", 3))
        assert found == [*values[:2], b"the end"]  # two fit into the first segment


@pytest.mark.parametrize("breaks", ["full", "one file"])
def test_a_topic_on_a_broken_disk_is_refused_when_the_last_broker_has_ended(mode: Mode, breaks: str) -> None:
    with Broker(mode=mode) as kafka:
        disk = kafka.disk(1)
        disk.full() if breaks == "full" else disk.fail("open", errno.EIO, path="orders-*", times=None)
        began = time.monotonic()
        with pytest.raises(KitError, match=r"topic 'orders' .*no broker of this cluster runs.*broker 1 has faults"):
            kafka.create_topic("orders")
        assert time.monotonic() - began < kafka.core().timeout_s / 2, "the call has not waited for its deadline"


def test_a_topic_is_created_by_the_brokers_that_are_left(three: Cluster) -> None:
    """Broker 1 is often the controller: its successor has the topic already, and the caller need not know."""
    three.disk(1).fail("write", errno.EIO, times=None)
    assert three.create_topic("orders", partitions=3) == "orders"


async def test_one_of_two_log_directories_fails(mode: Mode) -> None:
    """Its partitions get another leader; the broker and its other directory go on."""
    with Cluster(2, mode=mode, log_dirs=2, config={"min.insync.replicas": 1}) as kafka:
        kafka.create_topic("orders", 4)
        with Wire(kafka.broker(2).address) as wire:
            first, second = wire.call(DescribeLogDirsRequest(topics=None), 4).results
        [there] = [each.partitions for each in second.topics if each.name == "orders"]
        [here] = [each.partitions for each in first.topics if each.name == "orders"]
        fails, stays = there[0].partition_index, here[0].partition_index
        for each in (fails, stays):
            kafka.move_leader("orders", each, to=2)
        kafka.disk(2, log_dir=1).fail("write", times=None, path=f"orders-{fails}/*")
        broken = kafka.disk(2, log_dir=2).fail("write", times=None, path="orders-*")
        async with Producer(bootstrap_servers=kafka.bootstrap_servers, delivery_timeout_ms=120_000) as producer:
            for each in (stays, fails):
                await producer.send_and_wait("orders", b"tea", partition=each)
        assert (kafka.leader("orders", fails), kafka.leader("orders", stays)) == (1, 2)
        assert kafka.broker(2).state == "running"
        assert broken.hits >= 1
        kafka.disk(2, log_dir=2).heal()
        kafka.disk(2).heal()
        kafka.restart(2)
        assert kafka.move_leader("orders", fails, to=2) == 2
        if mode == "process":
            assert [(each / "meta.properties").exists() for each in kafka.broker(2).directories] == [True, True]


def test_a_slow_sync_delays_the_answer(mode: Mode) -> None:
    with Broker(mode=mode) as kafka:
        kafka.create_topic("orders", config={"flush.messages": 1})

        async def timed() -> float:
            loop = asyncio.get_running_loop()
            async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
                await producer.send_and_wait("orders", b"0")
                kafka.disk(1).slow(0.3)
                before = loop.time()
                await producer.send_and_wait("orders", b"1")
                took = loop.time() - before
                kafka.disk(1).slow(0)
                return took

        assert asyncio.run(timed()) >= 0.295  # timers count whole milliseconds


def test_a_flipped_bit_is_found_by_the_client(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        asyncio.run(write(kafka, "orders", b"1", b"2", b"3"))
        kafka.disk(1).flip_bit("orders", 0, offset=1)
        with pytest.raises(CorruptRecords):
            asyncio.run(read(kafka, "orders", 3))


def test_a_disk_without_faults_again(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        disk = kafka.disk(1)
        disk.fail("read", path="orders-0/*")
        disk.fail("open", path="orders-0/*")
        disk.heal()
        asyncio.run(write(kafka, "orders", b"1"))
        assert asyncio.run(read(kafka, "orders", 1)) == [b"1"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda kafka: kafka.disk(2), "broker 2 is unknown"),
        (
            lambda kafka: kafka.disk(1, log_dir=2),
            r"log_dir=2: this cluster has log_dirs=1, so write a number from 1 to 1",
        ),
        (lambda kafka: kafka.disk(1).fail("sync"), "unknown call of a disk 'sync'; did you mean 'fsync'"),
        (lambda kafka: kafka.disk(1).fail("write", 9999), "errno 9999 is unknown"),
        (lambda kafka: kafka.disk(1).fail("write", "EIO"), "errno 'EIO' is unknown"),
        (lambda kafka: kafka.disk(1).fail("write", times=0), "times=0: a number from 1"),
        (lambda kafka: kafka.disk(1).fail("write", path=""), "path='': write a pattern"),
        (lambda kafka: kafka.disk(1).slow(-1), r"slow\(-1\)"),
        (lambda kafka: kafka.disk(1).flip_bit("orders", offset=-1), "offset=-1"),
        (lambda kafka: kafka.disk(1).flip_bit("orders", offset=7), "orders-0 has no record at offset 7"),
        (lambda kafka: kafka.disk(1).flip_bit("nobody", offset=0), "it has no replica nobody-0"),
    ],
)
def test_what_cannot_be_is_refused(written: Callable[[Cluster], object], text: str) -> None:
    with Broker(topics={"orders": 1}) as kafka, pytest.raises(KitError, match=text):
        written(kafka)


def test_a_remote_kafka_has_no_disks() -> None:
    with (
        Broker() as kafka,
        Cluster.connect(kafka.bootstrap_servers) as remote,
        pytest.raises(NotPossible, match="mode 'remote'"),
    ):
        remote.disk(1)
