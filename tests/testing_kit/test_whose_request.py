"""Faults meet the requests of every client, whatever its client id, and none between brokers or of the kit itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.testing import Cluster
from tests.support.oracle.wire import Wire

# Client ids as brokers use them between themselves (`Peers`: purpose-node), and that of the kit's own client.
LIKE_BROKERS = ["fetch-1", "markers-2", "transactions-1", "controller-3", "barnabas-kit"]
DEADLINE_S = 30.0


@pytest.fixture(scope="module", params=["thread", "process"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(brokers=3, mode=request.param, topics={"orders": 1}) as kafka:
        yield kafka


@pytest.fixture
def kafka(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.faults.clear()


@pytest.mark.parametrize("client_id", LIKE_BROKERS)
def test_a_client_with_the_client_id_of_a_broker_meets_faults(kafka: Cluster, client_id: str) -> None:
    fault = kafka.faults.on("Produce", client=client_id).error("TOPIC_AUTHORIZATION_FAILED")
    reported: list[str] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": client_id})
    producer.produce("orders", b"tea", on_delivery=lambda error, _: reported.append(error.name() if error else ""))
    assert producer.flush(DEADLINE_S) == 0
    assert reported == ["TOPIC_AUTHORIZATION_FAILED"]
    assert fault.hits == 1
    assert fault.requests[0]["client"] == client_id


def test_requests_between_brokers_and_of_the_kit_meet_no_fault(kafka: Cluster) -> None:
    """While every request of a client fails, followers fetch, transactions get their markers, and the kit does its work."""
    txn = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"orders-{kafka.mode}"})
    txn.init_transactions(DEADLINE_S)
    txn.begin_transaction()
    txn.produce("orders", b"tea")
    assert txn.flush(DEADLINE_S) == 0
    fault = kafka.faults.on("*", times=None, client="app").error("UNKNOWN_SERVER_ERROR")
    between = [
        kafka.faults.on(name, times=None, strict=False).error("UNKNOWN_SERVER_ERROR")
        for name in ("Fetch", "WriteTxnMarkers", "AddPartitionsToTxn", "CreateTopics", "ElectLeaders")
    ]
    txn.commit_transaction(DEADLINE_S)
    leader = kafka.leader("orders")
    assert kafka.move_leader("orders") != leader, "the replicas are in sync, and the kit's requests are answered"
    assert kafka.create_topic(f"more-{kafka.mode}", replication_factor=3)
    with Wire(kafka.broker(1).address, client_id="app") as peer:
        assert peer.call(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 9).topics[0].error_code == -1
    assert fault.hits
    assert [each.hits for each in between] == [0] * len(between)


def test_clients_are_given_no_internal_address(kafka: Cluster) -> None:
    own = {int(each.rpartition(":")[2]) for each in kafka.bootstrap_servers.split(",")}
    listed = Producer({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=DEADLINE_S).brokers
    assert {each.port for each in listed.values()} == own


def test_advertised_addresses_of_the_user_are_kept() -> None:
    with Cluster(brokers=2, config={"advertised.listeners": "PLAINTEXT://localhost:0"}) as kafka:
        kafka.create_topic("orders", replication_factor=2)
        listed = Producer({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=DEADLINE_S).brokers
        assert {each.host for each in listed.values()} == {"localhost"}
        assert {each.port for each in listed.values()} == {each.port for each in kafka.brokers}
