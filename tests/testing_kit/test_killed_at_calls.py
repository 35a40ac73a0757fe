"""Brokers that end at a call of their disk, and brokers that the test itself ends: in both modes, by the same rules."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.testing import Broker, Cluster, KitError, KitTimeout
from barnabas.testing.backend import Mode
from barnabas.testing.world.disks import PartDone
from tests.support.kit_modes import THREADS
from tests.support.oracle.wire import Wire
from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]

LIMIT_S = 60.0
SYNCED = {"flush.messages": 1}


@pytest.fixture(params=THREADS)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


async def _write(kafka: Cluster, *values: bytes) -> None:
    async with Producer(bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=True) as producer:
        for value in values:
            await producer.send_and_wait("orders", value, partition=0)


def write(kafka: Cluster, *values: bytes) -> None:
    """Writes one record after the other; each is acknowledged."""
    asyncio.run(_write(kafka, *values))


def read(kafka: Cluster, count: int) -> list[bytes]:
    async def taken() -> list[bytes]:
        async with (
            asyncio.timeout(LIMIT_S),
            Consumer("orders", bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest") as consumer,
        ):
            return [(await consumer.getone()).value or b"" for _ in range(count)]

    return asyncio.run(taken())


def begun(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


# -- killed at a call


@pytest.mark.parametrize(
    ("mode", "done"),
    [
        ("thread", "nothing"),
        ("thread", "half"),
        ("thread", "all"),
        pytest.param("process", "half", marks=pytest.mark.process),
    ],
)
def test_a_broker_ends_at_a_write(mode: Mode, done: PartDone) -> None:
    """The producer goes on when the broker is back; each record is there once, however much of the write was done."""
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        write(kafka, b"1")
        fault = kafka.disk(1).kill("write", nth=2, done=done, path="orders-0/*.log")
        writing = begun(lambda: write(kafka, b"2", b"3", b"4"))
        assert fault.wait(timeout=LIMIT_S) is fault
        assert kafka.broker(1).state == "down"
        path = "orders-0/00000000000000000000.log"
        [call] = fault.calls
        assert fault.hits == 1
        assert (call["broker"], call["call"], call["path"]) == (1, "write", path)
        assert call["offset"] == 2 * call["size"] > 0
        if mode == "process":
            size = (kafka.broker(1).directory / path).stat().st_size
            assert size == 2 * call["size"] + call["size"] // 2
        kafka.restart(1)
        writing.join(LIMIT_S)
        assert fault.hits == 1, "a broker is killed once"
        assert read(kafka, 4) == [b"1", b"2", b"3", b"4"]


def test_a_thread_that_is_killed_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Broker(topics={"orders": 1}) as kafka:
        fault = kafka.disk(1).kill("write", path="orders-0/*")
        writing = begun(lambda: write(kafka, b"1"))
        fault.wait(timeout=LIMIT_S)
        kafka.restart(1)
        writing.join(LIMIT_S)
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("mode", "done", "kept"),
    [
        ("thread", "nothing", [b"1"]),
        ("thread", "all", [b"1", b"2"]),
        pytest.param("process", "nothing", [b"1"], marks=pytest.mark.process),
    ],
)
def test_the_page_cache_is_lost_at_an_fsync(mode: Mode, done: PartDone, kept: list[bytes]) -> None:
    """A record is written, and the broker ends before or after it is synced, without its page cache."""
    with Broker(mode=mode, log_dirs=2) as kafka:
        kafka.create_topic("orders", config=SYNCED)
        write(kafka, b"1")
        fault = kafka.disk(1).kill("fsync", done=done, lose="page_cache", path="orders-0/*.log")
        with Wire(kafka.bootstrap_servers) as wire, pytest.raises(ConnectionError):
            wire.produce(9, "orders", 0, [b"2"])  # once: a producer would send it again
        fault.wait(timeout=LIMIT_S)
        kafka.restart(1)
        write(kafka, b"3")
        assert read(kafka, len(kept) + 1) == [*kept, b"3"]


def test_both_log_directories_lose_their_page_cache(mode: Mode) -> None:
    """Two partitions of one broker, in two directories, with files of one name and other contents."""
    with Broker(mode=mode, log_dirs=2) as kafka:
        kafka.create_topic("orders", 2)
        watched = [kafka.disk(1, log_dir=each).watch("write", path="orders-*/*.log") for each in (1, 2)]

        async def one_each() -> None:
            async with Producer(bootstrap_servers=kafka.bootstrap_servers, acks=1) as producer:
                for partition in (0, 1):
                    await producer.send_and_wait("orders", b"lost", partition=partition)

        asyncio.run(one_each())
        assert [each.hits for each in watched] == [1, 1]
        kafka.kill(1, lose="page_cache")
        kafka.restart(1)

        async def ends() -> list[int]:
            async with Consumer(bootstrap_servers=kafka.bootstrap_servers) as consumer:
                both = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
                found = await consumer.end_offsets(both)
                return [found[each] for each in both]

        assert asyncio.run(ends()) == [0, 0]


def test_a_clean_stop_is_cut_short(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        write(kafka, b"1")
        with kafka.disk(1).watch() as changes:
            kafka.stop_broker()
            count = changes.hits
        assert count > 5
        assert {each["call"] for each in changes.calls} >= {"write", "fsync"}
        kafka.restart()
        fault = kafka.disk(1).kill("change", path=".kafka_cleanshutdown")
        kafka.stop_broker()
        assert fault.hits == 1
        kafka.restart()
        assert read(kafka, 1) == [b"1"]


def test_a_start_is_cut_short(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        write(kafka, b"1")
        kafka.kill()
        fault = kafka.disk(1).kill("change", nth=3)
        with pytest.raises(KitError, match="a fault of its disk has killed broker 1"):
            kafka.restart()
        assert fault.wait().hits == 1
        if mode == "process":
            kafka.restart()  # the second fault needs three more starts
            assert read(kafka, 1) == [b"1"]
            return
        second = kafka.disk(1).kill("change", nth=2)
        kafka.restart(wait=False)
        second.wait(timeout=LIMIT_S)
        kafka.restart()
        assert read(kafka, 1) == [b"1"]


def test_the_others_go_on() -> None:
    with Cluster(3) as kafka:
        kafka.create_topic("orders", config={"min.insync.replicas": 2})
        victim = kafka.leader("orders")
        fault = kafka.disk(victim).kill("write", path="orders-0/*.log")
        write(kafka, b"1", b"2")
        assert fault.wait(timeout=LIMIT_S).calls[0]["broker"] == victim
        assert kafka.leader("orders") != victim
        kafka.restart(victim)
        kafka.rolling_restart()
        assert read(kafka, 2) == [b"1", b"2"]


async def test_a_coroutine_waits_for_the_end() -> None:
    with Broker(topics={"orders": 1}) as kafka:
        fault = kafka.disk(1).kill("write", path="orders-0/*.log")
        writing = asyncio.get_running_loop().create_task(_write(kafka, b"1"))
        assert await fault.aio.wait(timeout=LIMIT_S) is fault
        assert kafka.broker(1).state == "down"
        await kafka.aio.restart(1)
        await writing


def test_files_that_are_renamed_and_removed() -> None:
    """A topic is deleted: its folder gets another name, and is removed later."""
    with Broker(topics={"orders": 1}) as kafka:
        kafka.disk(1).kill("rename", done="all", path="orders-0.*-delete")
        with pytest.raises(KitError):
            kafka.delete_topics("orders")
        kafka.restart()
        assert kafka.topics() == []


def test_a_fault_counts_again_from_a_start() -> None:
    with Broker(topics={"orders": 1}) as kafka:
        fault = kafka.disk(1).kill("write", nth=2, path="orders-0/*.log")
        write(kafka, b"1")
        kafka.kill()
        kafka.restart()
        write(kafka, b"2")
        assert kafka.broker(1).state == "running"
        writing = begun(lambda: write(kafka, b"3"))
        fault.wait(timeout=LIMIT_S)
        kafka.restart()
        writing.join(LIMIT_S)
        assert read(kafka, 3) == [b"1", b"2", b"3"]


def test_the_nth_write_fails() -> None:
    with Cluster(2, config={"min.insync.replicas": 1}) as kafka:
        kafka.create_topic("orders")
        leader = kafka.leader("orders")
        fault = kafka.disk(leader).fail("write", errno.EIO, nth=2, path="orders-0/*.log")
        write(kafka, b"1")
        assert fault.hits == 0
        write(kafka, b"2")
        assert fault.wait().hits == 1


def test_a_slow_read(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("barnabas.testing.world.disks.time", SimpleNamespace(sleep=slept.append))
    with Broker(topics={"orders": 1}) as kafka:
        write(kafka, b"1")
        kafka.kill()
        kafka.disk(1).slow(0.2, "read", path="orders-0/*.log")
        reads = kafka.disk(1).watch("read", path="orders-0/*.log")
        kafka.restart()
        assert slept == [0.2] * reads.hits
        assert reads.hits
        kafka.disk(1).slow(0, "read")
        assert not [each for each in kafka.core().extensions if "slow" in each.explain()]


def test_what_does_not_happen_is_told() -> None:
    with Broker(topics={"orders": 1}) as kafka:
        fault = kafka.disk(1).kill("write", nth=7, path="orders-0/*")
        with pytest.raises(
            KitTimeout, match=r"<kill at write on broker 1, path 'orders-0/\*'>: 0 of 1 calls within 0.01 s"
        ):
            fault.wait(timeout=0.01)
        fault.remove()
        write(kafka, *(b"%d" % each for each in range(8)))
        assert (fault.hits, kafka.broker(1).state) == (0, "running")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda disk: disk.kill("writes"), "unknown call of a disk 'writes'; did you mean 'write'"),
        (lambda disk: disk.kill("write", nth=0), "nth=0: write a whole number from 1"),
        (lambda disk: disk.kill("write", done="some"), "unknown part of a call that is done 'some'"),
        (lambda disk: disk.kill("write", done="haf"), "did you mean 'half'"),
        (lambda disk: disk.kill("write", lose="pagecache"), "unknown loss 'pagecache'; did you mean 'page_cache'"),
        (lambda disk: disk.kill("fsync", done="half"), "only a write has a half"),
        (lambda disk: disk.kill("write", done="half", lose="page_cache"), "the half is lost, too"),
        (lambda disk: disk.kill("write", path=1), "path=1: write a pattern"),
        (lambda disk: disk.kill("write", strict=1), "strict=1: True or False"),
        (lambda disk: disk.kill("write").wait(hits=2), "this fault meets 1 at most"),
        (lambda disk: disk.watch("reed"), "did you mean 'read'"),
        (lambda disk: disk.slow(1, "reed"), "did you mean 'read'"),
        (lambda disk: disk.slow(-1, "read"), r"slow\(-1\)"),
    ],
)
def test_what_cannot_be_is_refused(written: Callable[[object], object], text: str) -> None:
    with Broker() as kafka, pytest.raises(KitError, match=text):
        written(kafka.disk(1))


def test_an_unknown_option_or_method_is_refused() -> None:
    with Broker() as kafka:
        with pytest.raises(TypeError, match=r"BrokerDisk.kill\(\): unknown option 'paht'; did you mean 'path'"):
            kafka.disk(1).kill("write", paht="orders-0/*")  # type: ignore[call-arg]  # wrong by design
        with pytest.raises(AttributeError, match="did you mean 'kill'"):
            kafka.disk(1).kil("write")  # type: ignore[attr-defined]  # as above


# -- ended by the test


@pytest.mark.process
async def test_a_process_that_the_test_ends_is_no_failure_once() -> None:
    kafka = Broker(mode="process")
    await kafka.aio.start()

    def end_it() -> int:
        pid = kafka.broker(1).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    async with kafka.expect_end():
        end_it()
    assert kafka.broker(1).state == "down"
    await kafka.aio.restart()
    pid = end_it()
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    await kafka.wait_async(kafka.core().backend.settle(1))
    with pytest.raises(KitError, match="broker 1 ended"):
        await kafka.aio.stop()


def test_an_expected_end_that_does_not_come() -> None:
    with Broker() as kafka:
        with pytest.raises(KitTimeout, match=r"broker 1 has not ended within 0 s; it is running"):
            kafka.broker(1).expect_end().wait(timeout=0)
        kafka.kill()
        with pytest.raises(KitError, match="broker 1 is down already"):
            kafka.expect_end()


# -- with the plugin

ENDS = """
import errno
import pytest

def test_never_killed(kafka):
    kafka.disk(1).kill("write", path="orders-0/*")

def test_never_failed(kafka):
    kafka.disk(1).fail("write", errno.EIO, path="orders-0/*")

def test_may_be(kafka):
    kafka.disk(1).kill("write", path="orders-0/*", strict=False)
    kafka.disk(1).fail("write", path="orders-0/*", strict=False)
    kafka.disk(1).watch()
    kafka.disk(1).slow(1)

@pytest.mark.kafka(isolation="namespace")
def test_shared(kafka):
    fault = kafka.disk(1).kill("write", path="orders-0/*")
    with pytest.raises(Exception):
        kafka.create_topic("orders")
    assert fault.hits == 1

@pytest.mark.kafka(isolation="namespace")
def test_shared_again(kafka):
    kafka.create_topic("orders")
"""


def test_a_kill_that_never_happened_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ENDS)
    run = pytester.runpytest_inprocess()
    run.assert_outcomes(passed=5, errors=2)
    run.stdout.fnmatch_lines(
        [
            "*no call of a disk met <kill at write on broker 1, path 'orders-0/[*]'>: the broker has made no such call*",
            "*no call of a disk met <write fails on broker 1, path 'orders-0/[*]'>*strict=False*",
        ]
    )
