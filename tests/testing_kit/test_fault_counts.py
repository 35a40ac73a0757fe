"""How often a fault hits: over brokers, a restart and a pause; exact counts; and what wrong use is reported."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.testing import Broker, Cluster, KitError, KitTimeout
from barnabas.testing.core import Core
from tests.support.oracle.wire import Wire

REQUEST = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
FAILED = -1  # UNKNOWN_SERVER_ERROR


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(brokers=3, topics={"orders": 1}) as kafka:
        yield kafka


@pytest.fixture
def cluster(three: Cluster) -> Iterator[Cluster]:
    yield three
    three.faults.clear()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 1}) as kafka:
        yield kafka


def code(address: str) -> int:
    """The error of one Metadata request."""
    with Wire(address, client_id="app") as peer:
        return int(peer.call(REQUEST, 9).topics[0].error_code)


def test_the_number_of_hits_holds_for_all_brokers_together(cluster: Cluster) -> None:
    fault = cluster.faults.on("Metadata", times=2).error("UNKNOWN_SERVER_ERROR")
    codes = []
    for _ in range(2):
        for each in cluster.brokers:
            codes.append(code(each.address))
            assert fault.hits == codes.count(FAILED), "a hit is counted once its answer has arrived"
    assert codes == [FAILED, FAILED, 0, 0, 0, 0]


def test_a_fault_that_holds_hits_once_in_a_cluster(cluster: Cluster) -> None:
    fault = cluster.faults.on("Metadata").hold()
    with Wire(cluster.broker(1).address, client_id="app") as held:
        number = held.send(REQUEST, 9)
        fault.wait(1)
        assert [code(each.address) for each in cluster.brokers] == [0, 0, 0]
        fault.release()
        assert held.receive(3, 9, number).topics[0].error_code == 0
    assert fault.hits == 1


def test_a_restart_does_not_renew_the_hits(broker: Broker) -> None:
    fault = broker.faults.on("Metadata", times=2).error("UNKNOWN_SERVER_ERROR")
    assert code(broker.bootstrap_servers) == FAILED
    broker.kill()
    broker.restart()
    assert [code(broker.bootstrap_servers) for _ in range(2)] == [FAILED, 0]
    assert fault.hits == 2


def test_a_fault_that_was_removed_during_a_pause_is_gone(broker: Broker) -> None:
    removed = broker.faults.on("Metadata", times=None).error("UNKNOWN_SERVER_ERROR")
    broker.pause()
    removed.remove()
    broker.resume()
    assert code(broker.bootstrap_servers) == 0


def test_a_fault_that_was_written_during_a_pause_hits(broker: Broker) -> None:
    broker.pause()
    fault = broker.faults.on("Metadata").error("UNKNOWN_SERVER_ERROR")
    broker.resume()
    assert [code(broker.bootstrap_servers) for _ in range(2)] == [FAILED, 0]
    assert fault.hits == 1


def test_a_broker_that_is_down_gets_no_commands(broker: Broker) -> None:
    broker.kill()
    fault = broker.faults.on("Metadata").hold()
    fault.release()
    fault.remove()
    assert fault.hits == 0
    broker.restart()
    assert code(broker.bootstrap_servers) == 0


def test_the_end_of_a_cluster_does_not_wait_for_a_held_request() -> None:
    with Broker(topics={"orders": 1}) as kafka:
        fault = kafka.faults.on("Metadata").hold()
        peer = Wire(kafka.bootstrap_servers, client_id="app")
        peer.send(REQUEST, 9)
        fault.wait(1)
        limit_s = kafka.core().timeout_s
        began = time.monotonic()
    peer.socket.close()
    assert time.monotonic() - began < limit_s
    assert fault.hits == 1, "it can still be read"


# -- from a coroutine


async def _release_when_met(kafka: Broker) -> list[int]:
    fault = kafka.faults.on("Metadata").hold()
    answer = asyncio.get_running_loop().run_in_executor(None, code, kafka.bootstrap_servers)
    assert await fault.aio.wait(1, timeout=60) is fault
    assert not answer.done()
    fault.release()
    with pytest.raises(KitTimeout, match=r"has met 1 of 2 requests within 0\.01 s"):
        await fault.aio.wait(2, timeout=0.01)
    return [await answer]


def test_a_coroutine_waits_without_blocking_its_loop(broker: Broker) -> None:
    assert asyncio.run(_release_when_met(broker)) == [0]


# -- wrong use


def test_a_fault_without_an_action_is_reported(broker: Broker) -> None:
    broker.faults.on("EndTxn", strict=False)
    with pytest.raises(KitError, match="a fault on EndTxn has no action"):
        broker.faults.verify()
    broker.faults.clear()
    broker.faults.verify()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"times": "2"}, "times='2': write a whole number"),
        ({"nth": None}, "nth=None"),
        ({"partition": True}, "partition=True"),
        ({"topic": 3}, "topic=3: write a pattern"),
        ({"probability": "1"}, "probability='1'"),
    ],
)
def test_values_of_a_wrong_type_are_refused(broker: Broker, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(KitError, match=text):
        broker.faults.on("Produce", **arguments)


def test_wrong_arguments_of_actions_are_refused(broker: Broker) -> None:
    with pytest.raises(KitError, match="write a number"):
        broker.faults.on("Produce").delay("1")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(KitError, match="0 to 3600 seconds"):
        broker.faults.on("Produce").delay(-1, jitter=2)
    with pytest.raises(KitError, match="0 to 3600000 milliseconds"):
        broker.faults.on("Produce").throttle(-1)
    with pytest.raises(KitError, match="'applied'"):
        broker.faults.on("Produce").error("REQUEST_TIMED_OUT", after="applied")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(KitError, match="a function of a request"):
        broker.faults.on("Produce").rewrite(3)  # type: ignore[arg-type]  # that is the point
    broker.faults.verify()  # a refused action is not a forgotten one


def _raising(request: object, response: object) -> object:
    raise ValueError("my mistake")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_raising, r"<rewrite on Metadata, 1 hits> failed: ValueError\('my mistake'\)"),
        (lambda request, response: None, "returned None: return the response, or another MetadataResponse"),
    ],
)
def test_a_failed_rewrite_is_reported(broker: Broker, function: Callable[[object, object], object], text: str) -> None:
    broker.faults.on("Metadata").rewrite(function)
    with pytest.raises(ConnectionResetError):
        code(broker.bootstrap_servers)
    with pytest.raises(KitError, match=text):
        broker.faults.verify()


async def _has_left(core: Core, client_id: str) -> bool:
    return client_id not in await core.client_connections()


@pytest.mark.parametrize("held", [True, False])
def test_a_request_whose_client_leaves_while_it_waits_has_no_effect(broker: Broker, held: bool) -> None:
    selected = broker.faults.on("Produce", times=1 if held else 2)
    fault = selected.hold() if held else selected.delay(1.0)
    with Wire(broker.bootstrap_servers, client_id="app") as peer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(peer.produce, 9, "orders", 0, [b"record"])
        fault.wait(1)
        peer.socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionResetError):
            waiting.result(60)
    core = broker.core()
    broker.wait(core._until(lambda: _has_left(core, "app"), "the client has left"))
    with Wire(broker.bootstrap_servers, client_id="other") as peer:
        fault.release()  # a second delayed request ends after the first one
        assert peer.produce(9, "orders", 0, [b"next"]).base_offset == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # the fork of the application
def test_a_forked_child_cannot_write_faults(broker: Broker) -> None:
    faults, waiting = broker.faults, broker.faults.on("Metadata")
    child = os.fork()
    if child == 0:
        refused = 0
        writes: list[Callable[[], object]] = [lambda: faults.on("Produce"), waiting.drop]
        for write in writes:
            try:
                write()
            except KitError as error:
                refused += "forked child" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
