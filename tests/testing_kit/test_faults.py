"""Faults on the wire: what each does to a request, its answer and its connection; and that a wrong one is refused at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.acls import DescribeAclsRequest
from barnabas.protocol.messages.admin import DeleteTopicsRequest
from barnabas.protocol.messages.groups import HeartbeatRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.produce import ProduceRequest
from barnabas.testing import Broker, Cluster, KitError, KitTimeout, NotPossible
from barnabas.testing.faults.rule import PLACES, apis
from tests.support.oracle.wire import Wire

# Requests without fields are answered for most APIs; the others here.
REQUESTS: dict[str, Callable[[], Any]] = {
    "DescribeAcls": lambda: DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1),
    "Produce": lambda: ProduceRequest(acks=1, timeout_ms=1_000),  # without acks it has no answer
}
EARLY_S = 0.005  # uvloop counts whole milliseconds: a timer may fire that much early


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 1}) as kafka:
        yield kafka


@pytest.fixture
def kafka(broker: Broker) -> Iterator[Broker]:
    yield broker
    broker.faults.clear()


@contextlib.contextmanager
def wire(kafka: Cluster, client_id: str = "app", timeout_s: float = 60.0) -> Iterator[Wire]:
    with Wire(kafka.bootstrap_servers, client_id=client_id, timeout_s=timeout_s) as opened:
        yield opened


def metadata(*topics: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=each) for each in topics])


def end_of(kafka: Broker) -> int:
    """The log end offset of orders-0: how many records it has."""
    with wire(kafka, "observer") as peer:
        return int(peer.fetch("orders", 0, 0).high_watermark)


def produce(peer: Wire) -> int:
    """Produces one record to orders-0 with acks=all; returns the error code."""
    return int(peer.produce(9, "orders", 0, [b"record"]).error_code)


# -- what a fault does


def test_an_error_before_the_effect(kafka: Broker) -> None:
    before = end_of(kafka)
    fault = kafka.faults.on("Produce", topic="ord*").error("NOT_LEADER_OR_FOLLOWER")
    with wire(kafka) as peer:
        assert produce(peer) == 6
        assert produce(peer) == 0, "once, unless `times` says otherwise"
    assert end_of(kafka) == before + 1
    assert fault.wait(1).hits == 1
    assert fault.requests[0]["topic"] == ["orders"]
    assert fault.requests[0]["client"] == "app"


def test_an_error_after_the_effect(kafka: Broker) -> None:
    before = end_of(kafka)
    kafka.faults.on("Produce").error("REQUEST_TIMED_OUT", after="apply")
    with wire(kafka) as peer:
        assert produce(peer) == 7
    assert end_of(kafka) == before + 1


@pytest.mark.parametrize(
    ("place", "written"), [("received", 0), ("applied", 1), ("replicated", 1), ("half_answered", 1)]
)
def test_a_connection_is_cut(kafka: Broker, place: str, written: int) -> None:
    before = end_of(kafka)
    kafka.faults.on("Produce").disconnect(at=place)  # type: ignore[arg-type]  # a Literal, from the table
    with wire(kafka) as peer, pytest.raises(ConnectionResetError):
        produce(peer)
    assert end_of(kafka) == before + written


def test_half_an_answer_arrives(kafka: Broker) -> None:
    kafka.faults.on("Metadata").disconnect(at="half_answered")
    with wire(kafka) as peer:
        peer.send(metadata("orders"), 9)
        size = int.from_bytes(peer.socket.recv(4), "big")
        received = 0
        while piece := peer.socket.recv(65_536):
            received += len(piece)
    assert 0 < received < size


def test_a_delay_holds_the_connection_and_no_other(kafka: Broker) -> None:
    kafka.faults.on("Metadata", client="slow").delay(0.4, jitter=0.1)
    with wire(kafka, "slow") as slow:
        began = time.monotonic()
        first, second = slow.send(metadata("orders"), 9), slow.send(HeartbeatRequest(group_id="g"), 4)
        slow.receive(3, 9, first)
        assert time.monotonic() - began >= 0.4 - EARLY_S
        slow.receive(12, 4, second)
    fault = kafka.faults.on("Metadata", client="slow").delay(3_600)
    with wire(kafka, "slow", timeout_s=0.3) as slow, wire(kafka, "fast") as fast:
        slow.send(metadata("orders"), 9)
        fault.wait(1)
        fast.call(metadata("orders"), 9)
        with pytest.raises(TimeoutError):
            slow.socket.recv(1)


def test_a_held_request_goes_on_when_it_is_released(kafka: Broker) -> None:
    before = end_of(kafka)
    fault = kafka.faults.on("Produce").hold()
    codes: list[int] = []
    with wire(kafka) as peer:
        writer = threading.Thread(target=lambda: codes.append(produce(peer)))
        writer.start()
        fault.wait(1)
        assert end_of(kafka) == before
        fault.release()
        writer.join(60)
    assert codes == [0]
    assert end_of(kafka) == before + 1


def test_a_dropped_request_has_no_effect_and_no_answer(kafka: Broker) -> None:
    before = end_of(kafka)
    kafka.faults.on("Produce").drop()
    with wire(kafka, timeout_s=0.3) as peer, pytest.raises(TimeoutError):
        produce(peer)
    assert end_of(kafka) == before


def test_a_duplicate_takes_effect_twice(kafka: Broker) -> None:
    before = end_of(kafka)
    kafka.faults.on("Produce").duplicate()
    with wire(kafka) as peer:
        assert produce(peer) == 0
    assert end_of(kafka) == before + 2


def test_a_late_request_takes_effect_after_the_next_one(kafka: Broker) -> None:
    before = end_of(kafka)
    kafka.faults.on("Produce").late(until="Produce")
    with wire(kafka) as peer, pytest.raises(ConnectionResetError):
        peer.produce(9, "orders", 0, [b"late"])
    assert end_of(kafka) == before
    with wire(kafka) as peer:
        assert peer.produce(9, "orders", 0, [b"next"]).base_offset == before
    assert end_of(kafka) == before + 2


def test_a_late_request_takes_effect_if_its_handler_first_computes(kafka: Broker) -> None:
    kafka.create_topic("doomed")
    deletion = DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=10_000)
    kafka.faults.on("DeleteTopics").late(until="Metadata")
    with wire(kafka) as peer, pytest.raises(ConnectionResetError):
        peer.call(deletion, 5)
    with wire(kafka) as peer:
        assert [topic.error_code for topic in peer.call(metadata("doomed"), 9).topics] == [ErrorCode.NONE]
        (deleted,) = peer.call(deletion, 5).responses
    assert deleted.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_throttling_is_answered_and_kept(kafka: Broker) -> None:
    kafka.faults.on("Metadata").throttle(300)  # test_fault_ways.py: the answer itself is not late
    with wire(kafka) as peer:
        began = time.monotonic()
        assert peer.call(metadata("orders"), 9).throttle_time_ms == 300
        assert peer.call(metadata("orders"), 9).throttle_time_ms == 0
        assert time.monotonic() - began >= 0.3 - EARLY_S


def test_an_answer_is_rewritten(kafka: Broker) -> None:
    def without_leader(request: object, response: object) -> object:
        response.topics[0].partitions[0].leader_id = -1  # type: ignore[attr-defined]  # any message
        return response

    kafka.faults.on("Metadata").rewrite(without_leader)
    with wire(kafka) as peer:
        assert peer.call(metadata("orders"), 9).topics[0].partitions[0].leader_id == -1


def test_nth_times_and_clients(kafka: Broker) -> None:
    fault = kafka.faults.on("Metadata", client="app-*", nth=2, times=2).error("UNKNOWN_SERVER_ERROR")
    with wire(kafka, "app-1") as peer, wire(kafka, "other") as other:
        codes = [peer.call(metadata("orders"), 9).topics[0].error_code for _ in range(5)]
        assert other.call(metadata("orders"), 9).topics[0].error_code == 0
    assert codes == [0, -1, -1, 0, 0]
    assert fault.wait(2).hits == 2


def test_a_transaction_whose_commit_has_lost_its_answer(kafka: Broker) -> None:
    """librdkafka repeats the EndTxn, and the records are there once."""
    kafka.create_topic("paid")
    fault = kafka.faults.on("EndTxn", txn="orders-*").disconnect(at="applied")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "orders-1"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", b"1")
    producer.commit_transaction(30)
    assert fault.hits == 1
    with wire(kafka) as peer:
        assert peer.fetch("paid", 0, 0, isolation_level=1).last_stable_offset == 2  # the record and its marker


def test_faults_in_processes_and_after_a_restart() -> None:
    with Cluster(brokers=1, mode="process", topics={"orders": 1}) as kafka:
        fault = kafka.faults.on("Metadata", times=2).error("UNKNOWN_SERVER_ERROR")
        with wire(kafka) as peer:
            assert peer.call(metadata("orders"), 9).topics[0].error_code == -1
        fault.wait(1)
        kafka.restart(1)
        with wire(kafka) as peer:
            assert peer.call(metadata("orders"), 9).topics[0].error_code == -1
        with pytest.raises(NotPossible, match="mode 'thread'"):
            kafka.faults.on("Metadata").rewrite(lambda request, response: response)


# -- every API


@pytest.mark.parametrize("name", sorted(apis()))
def test_every_api_and_every_cut(kafka: Broker, name: str) -> None:
    api = apis()[name]
    version = api.versions[1]
    request = REQUESTS.get(name, api.request)()

    def exchange(timeout_s: float = 60.0) -> bool:
        """Whether an answer arrives."""
        with wire(kafka, timeout_s=timeout_s) as peer:
            try:
                peer.call(request, version)
            except (ConnectionResetError, TimeoutError):
                return False
            return True

    assert exchange(), "without a fault"
    for after in (None, "apply"):
        fault = kafka.faults.on(name).error("UNKNOWN_SERVER_ERROR", after=after)
        assert exchange()
        assert fault.wait(1).hits == 1
    for place in PLACES:
        fault = kafka.faults.on(name).disconnect(at=place)
        assert not exchange()
        assert fault.wait(1).hits == 1
    fault = kafka.faults.on(name).delay(0.01)
    assert exchange()
    assert fault.wait(1).hits == 1
    fault = kafka.faults.on(name).drop()
    assert not exchange(0.05)
    assert fault.wait(1).hits == 1


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("EndTx",), "did you mean 'EndTxn'"),
        (("EndTxn", {"topic": "orders"}), "EndTxn requests name no topic"),
        (("EndTxn", {"nth": 0}), "count from 1"),
        (("EndTxn", {"probability": 1.5}), "at most 1"),
        (("EndTxn", {"broker": 7}), "7"),
    ],
)
def test_a_fault_that_cannot_hit_is_refused(kafka: Broker, arguments: tuple[str, ...], text: str) -> None:
    name, *options = arguments
    with pytest.raises(KitError, match=text):
        kafka.faults.on(name, **(options[0] if options else {}))  # type: ignore[arg-type]  # that is the point


def test_wrong_actions_are_refused(kafka: Broker) -> None:
    faults = kafka.faults
    with pytest.raises(KitError, match="did you mean 'COORDINATOR_NOT_AVAILABLE'"):
        faults.on("EndTxn").error("COORDINATOR_NOT_AVAILABEL")
    with pytest.raises(KitError, match="place of a disconnect"):
        faults.on("EndTxn").disconnect(at="later")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(KitError, match="unknown API"):
        faults.on("EndTxn").late(until="EndTx")
    with pytest.raises(KitError, match="throttle_time_ms"):
        faults.on("SaslHandshake" if "SaslHandshake" in apis() else "*").throttle(10)
    with pytest.raises(TypeError, match="did you mean 'client'"):
        faults.on("EndTxn", clint="x")  # type: ignore[call-arg]  # that is the point


def test_a_fault_that_hit_nothing_is_reported(kafka: Broker) -> None:
    kafka.faults.on("EndTxn", txn="nobody").error("COORDINATOR_NOT_AVAILABLE")
    kafka.faults.on("EndTxn", txn="nobody", strict=False).error("COORDINATOR_NOT_AVAILABLE")
    with pytest.raises(KitError, match=r"no request met <error on EndTxn txn='nobody', 0 hits>:"):
        kafka.faults.verify()
    with pytest.raises(KitTimeout, match="0 of 1"):
        kafka.faults.on("EndTxn").drop().wait(1, timeout=0.01)


def test_a_kafka_of_others_has_no_faults(kafka: Broker) -> None:
    with Cluster.connect(kafka.bootstrap_servers) as running, pytest.raises(NotPossible, match="fault on the wire"):
        running.faults.on("EndTxn")
