"""Fetching from the nearest replica, the same questions to Barnabas and to a real Kafka of three nodes in three racks (KIP-392).

Not part of the suite: three JVMs. What it found is held by tests/clients/test_nearest.py, tests/node and tests/unit/broker.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from barnabas.protocol.messages.admin import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from barnabas.protocol.messages.admin import CreatableTopicConfig as Config
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, iter_batches
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.wire import NOT_READY, Wire
from tests.support.processes.cluster import Cluster, barnabas_nodes, kafka_nodes

pytestmark = [pytest.mark.oracle, pytest.mark.soak]

SELECTOR = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
BIG = 1 << 24
CONCURRENT_TRANSACTIONS = 51


class Script:
    """One run of the questions. Notes are what both sides must agree on; times are kept apart."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.wires = {n: Wire(node.address) for n, node in cluster.nodes.items()}
        self.notes: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    def close(self) -> None:
        for wire in self.wires.values():
            wire.close()

    def create(self, name: str, *replicas: int, **configs: str) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
            configs=[Config(name=key.replace("__", "."), value=value) for key, value in configs.items()],
        )
        answer = self.wires[1].call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
        assert answer.topics[0].error_code == 0, answer
        self.cluster.wait_in_sync(name)

    def produce(self, topic: str, *values: bytes, acks: int = -1, **producer: Any) -> int:
        """One batch to the leader, node 1; its base offset."""
        transactional_id = producer.pop("transactional_id", None)
        batch = build_batch(
            [NewRecord(None, value, int(time.time() * 1000)) for value in values],
            transactional=transactional_id is not None,
            **producer,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=[data])
        part = self.cluster.wait_for(
            lambda: self.wires[1].call(request, 12).responses[0].partition_responses[0],
            lambda one: one.error_code not in (CONCURRENT_TRANSACTIONS, *NOT_READY),
            "the coordinator is ready for the next transaction",
        )
        assert part.error_code == 0, part
        return int(part.base_offset)

    def ask(
        self,
        node: int,
        topic: str,
        offset: int,
        *,
        version: int = 11,
        rack: str = "",
        session: tuple[int, int] = (0, -1),
        named: bool = True,
        wait_ms: int = 0,
        isolation: int = 0,
        **fields: Any,
    ) -> Any:
        part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=BIG, **fields)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=BIG,
            isolation_level=isolation,
            session_id=session[0],
            session_epoch=session[1],
            topics=[FetchTopic(topic=topic, partitions=[part])] if named else [],
            rack_id=rack,
        )
        return self.wires[node].call(request, version)

    def note(self, name: str, node: int, topic: str, offset: int, **how: Any) -> None:
        """Asks and writes down what came."""
        began = time.monotonic()
        response = self.ask(node, topic, offset, **how)
        self.seconds[name] = round(time.monotonic() - began, 3)
        self.notes[name] = [response.error_code, *(seen(p) for t in response.responses for p in t.partitions)]

    def settled(
        self, node: int, topic: str, high_watermark: int, *, isolation: int = 0, stable: int | None = None
    ) -> float:
        """Waits until a node shows so much; after how many seconds."""

        def there() -> bool:
            (part,) = self.ask(node, topic, 0, isolation=isolation).responses[0].partitions
            return part.high_watermark == high_watermark and stable in (None, part.last_stable_offset)

        return self.cluster.wait_until(there, f"node {node} shows {topic} up to {high_watermark}")


def seen(part: Any) -> dict[str, Any]:
    aborted = part.aborted_transactions
    return {
        "error": part.error_code,
        "high_watermark": part.high_watermark,
        "stable": part.last_stable_offset,
        "start": part.log_start_offset,
        "preferred": part.preferred_read_replica,
        "aborted": aborted if aborted is None else [one.first_offset for one in aborted],
        "batches": [header.base_offset for _, header in iter_batches(part.records or b"")],
        "diverging": (part.diverging_epoch.epoch, part.diverging_epoch.end_offset),
        "leader": part.current_leader.leader_id,
    }


def questions(cluster: Cluster) -> Script:
    """Everything that is asked, in order. Node 1 leads, in rack a; nodes 2 and 3 are in b and c."""
    script = Script(cluster)
    notes = script.notes
    described = script.wires[1].call(DescribeClusterRequest(), 1)
    notes["racks"] = sorted((b.broker_id, b.rack) for b in described.brokers)
    described = script.wires[2].call(MetadataRequest(topics=[]), 9)
    notes["racks of metadata"] = sorted((b.node_id, b.rack) for b in described.brokers)

    script.create("t", 1, 2, 3)
    for value in (b"a", b"b", b"c"):
        script.produce("t", value)
    for node in (2, 3):
        script.settled(node, "t", 3)
    for rack in ("", "rack-1", "rack-2", "rack-3", "rack-9"):
        script.note(f"leader, rack {rack!r}", 1, "t", 1, rack=rack)
        script.note(f"leader, rack {rack!r}, committed", 1, "t", 1, rack=rack, isolation=1)
        script.note(f"follower, rack {rack!r}", 2, "t", 1, rack=rack)
    script.note("leader, v10", 1, "t", 1, version=10)
    script.note("follower, v10", 2, "t", 1, version=10)
    script.note("follower, v12", 2, "t", 1, version=12)
    for offset in (-1, 3, 4, 100):
        for node in (1, 2):
            script.note(f"node {node}, offset {offset}", node, "t", offset, rack="rack-2", wait_ms=100)
    script.note("preferred does not wait", 1, "t", 3, rack="rack-2", wait_ms=8_000)
    epoch = next(p.leader_epoch for p in cluster.partitions("t"))
    for step in (-1, 0, 1):
        if epoch + step >= 0:
            script.note(f"follower, epoch {step:+}", 2, "t", 1, current_leader_epoch=epoch + step)
            script.note(f"leader, rack b, epoch {step:+}", 1, "t", 1, current_leader_epoch=epoch + step, rack="rack-2")
    script.note("follower, last fetched epoch unknown", 2, "t", 1, version=12, last_fetched_epoch=epoch + 9)
    script.note("follower, last fetched epoch", 2, "t", 1, version=12, last_fetched_epoch=epoch)
    listed = [ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)]
    answer = script.wires[2].call(ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=listed)]), 5)
    notes["offsets of a follower"] = answer.topics[0].partitions[0].error_code
    ends = [OffsetForLeaderPartition(partition=0, leader_epoch=epoch)]
    answer = script.wires[2].call(
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=ends)]), 4
    )
    notes["epoch's end of a follower"] = answer.topics[0].partitions[0].error_code

    # sessions: with the leader, and with a follower
    opened = script.ask(1, "t", 1, rack="rack-2", session=(0, 0))
    notes["session opened"] = [opened.session_id > 0, [seen(p) for t in opened.responses for p in t.partitions]]
    script.note("session, again", 1, "t", 1, rack="rack-2", session=(opened.session_id, 1), named=False, wait_ms=300)
    script.note("session, no rack", 1, "t", 1, session=(opened.session_id, 2), named=False, wait_ms=300)
    opened = script.ask(2, "t", 1, rack="rack-2", session=(0, 0))
    notes["session of a follower"] = [opened.session_id > 0, [seen(p) for t in opened.responses for p in t.partitions]]
    script.note("session of a follower, moved", 2, "t", 3, rack="rack-2", session=(opened.session_id, 1), wait_ms=300)

    # a broker that holds no replica, and racks with two replicas
    script.create("two", 1, 2)
    script.produce("two", b"a")
    script.note("no replica", 3, "two", 0)
    script.note("no replica in the rack", 1, "two", 0, rack="rack-3")
    script.note("unknown topic", 2, "nowhere", 0)

    # a waiting fetch of a follower is answered when its high watermark moves
    for turn in range(3):
        sent = script.wires[2].send(
            FetchRequest(
                max_wait_ms=8_000,
                min_bytes=1,
                max_bytes=BIG,
                session_id=0,
                session_epoch=-1,
                topics=[
                    FetchTopic(
                        topic="t",
                        partitions=[FetchPartition(partition=0, fetch_offset=3 + turn, partition_max_bytes=BIG)],
                    )
                ],
                rack_id="rack-2",
            ),
            11,
        )
        time.sleep(0.7)  # both sides' followers wait for news by then
        script.produce("t", b"d")
        began = time.monotonic()
        response = script.wires[2].receive(1, 11, sent)
        script.seconds[f"a follower's news {turn}"] = round(time.monotonic() - began, 3)
        notes[f"a follower's news {turn}"] = [seen(p)["batches"] for t in response.responses for p in t.partitions]

    # transactions, on the follower
    script.create("x", 1, 2, 3)
    script.wires[1].find_coordinator("x", 1)
    coordinator = Wire(cluster.nodes[cluster.coordinator("x")].address)
    begin = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    begun = cluster.wait_for(
        lambda: coordinator.call(begin, 5), lambda one: not one.error_code, "the coordinator has loaded"
    )
    identity = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    for commit in (False, True):
        script.produce("x", b"1", b"2", transactional_id="x", base_sequence=0, **identity)
        ended = coordinator.call(
            EndTxnRequest(
                transactional_id="x",
                committed=commit,
                producer_id=identity["producer_id"],
                producer_epoch=identity["producer_epoch"],
            ),
            5,
        )
        assert ended.error_code == 0, ended
        identity = {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}
        script.settled(1, "x", 6 if commit else 3, stable=6 if commit else 3)
    script.produce("x", b"open", transactional_id="x", base_sequence=0, **identity)
    script.produce("x", b"behind")
    for node in (2, 3):
        script.settled(node, "x", 8)
    for node in (1, 2):
        for isolation in (0, 1):
            for offset in (0, 3, 6, 7):
                script.note(f"transactions, node {node}, {isolation}, {offset}", node, "x", offset, isolation=isolation)
    coordinator.close()

    # a follower that died leaves the ISR; what is not committed is nowhere shown
    script.create("m", 1, 2, 3, min__insync__replicas="3")
    script.produce("m", b"a")
    for node in (2, 3):
        script.settled(node, "m", 1)
    script.wires[3].close()
    cluster.kill(3)
    cluster.wait_until(lambda: sorted(cluster.partitions("m")[0].isr_nodes) == [1, 2], "node 3 is out of the ISR")
    script.note("rack of a dead follower", 1, "m", 0, rack="rack-3")
    script.produce("m", b"b", acks=1)
    script.produce("m", b"c", acks=1)
    time.sleep(1.5)  # the follower holds both by then, and may not show them
    for node in (1, 2):
        for offset in (0, 1, 2, 3, 4):
            script.note(f"uncommitted, node {node}, offset {offset}", node, "m", offset, wait_ms=100)
    for offset in (1, 2, 3, 4):
        script.note(f"uncommitted, leader, rack b, offset {offset}", 1, "m", offset, rack="rack-2")
    script.close()
    return script


@pytest.fixture(scope="module")
def of_kafka(tmp_path_factory: pytest.TempPathFactory) -> Script:
    needs_java()
    nodes = kafka_nodes(tmp_path_factory.mktemp("kafka"), SELECTOR, "broker.rack=rack-{node}")
    return _run(Cluster(nodes))


@pytest.fixture(scope="module")
def of_barnabas(tmp_path_factory: pytest.TempPathFactory) -> Script:
    racks = {n: [f"broker.rack=rack-{n}"] for n in (1, 2, 3)}
    return _run(Cluster(barnabas_nodes(tmp_path_factory.mktemp("barnabas"), SELECTOR, for_node=racks)))


def _run(cluster: Cluster) -> Script:
    try:
        return questions(cluster.start())
    finally:
        for node in cluster.nodes.values():
            node.kill()


def test_both_answer_alike(of_kafka: Script, of_barnabas: Script) -> None:
    differing = {
        name: (of_kafka.notes[name], of_barnabas.notes.get(name))
        for name in of_kafka.notes
        if of_kafka.notes[name] != of_barnabas.notes.get(name)
    }
    assert not differing
