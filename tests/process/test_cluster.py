"""Three brokers as processes: killed, frozen and rolled while records are written, copied exactly once and read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.tools import dumped
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster, barnabas_nodes  # not the kit: nodes start one by one

pytest.importorskip("confluent_kafka")

from tests.support.processes.copying import (
    SOURCE,
    TARGET,
    CopyRun,
    read_all,
)
from tests.support.processes.kit_cluster import StartCluster, cluster, start_cluster

__all__ = ["cluster", "start_cluster"]

pytestmark = pytest.mark.process

INTERNAL = ("__transaction_state", "__consumer_offsets")


def waited_for_sessions(cluster: Cluster) -> list[str]:
    """The log lines of brokers that were fenced only when their session ended; bench/cluster.py measures the gap after a kill."""
    lines = [line for node in cluster.nodes.values() for line in node.log().splitlines()]
    return [line for line in lines if "its session has timed out" in line]


def dumped_by_kafka(cluster: Cluster) -> None:
    """Kafka's tool reads every log that the nodes left behind, state topics and metadata by their decoders."""
    needs_java("the logs were not read by DumpLogSegments")
    logs = [
        path for node in cluster.nodes.values() for path in sorted(node.data.glob("*-*/*.log")) if path.stat().st_size
    ]
    assert logs
    decoders = {"__cluster_metadata": "--cluster-metadata-decoder", "__transaction_state": "--transaction-log-decoder"}
    for name, flags in {
        "__cluster_metadata": [decoders["__cluster_metadata"]],
        "__transaction_state": [decoders["__transaction_state"]],
        "": ["--deep-iteration"],
    }.items():
        chosen = [
            path
            for path in logs
            if (path.parent.name.startswith(name) if name else not path.parent.name.startswith(tuple(decoders)))
        ]
        assert chosen, f"no log of {name}"
        output = dumped(chosen, *flags)
        assert output.count("Dumping ") == len(chosen)
        for trouble in ("isvalid: false", "Found invalid", "corrupt", "mismatch"):
            assert trouble not in output, output[-2000:]


# -- the exactly-once copy


@pytest.mark.soak  # in the suite: test_demo.py for the copy, tests/clients/test_failover.py for librdkafka and aiokafka
@pytest.mark.parametrize("client", ["librdkafka", "barnabas", "aiokafka"])
def test_the_copy_through_a_kill_of_every_broker(cluster: Cluster, tmp_path: Path, client: str) -> None:
    records = 100_000
    share = records // 4
    with CopyRun(cluster, tmp_path, client=client) as run:
        for node_id in cluster.nodes:
            run.feed(share)
            cluster.kill(node_id)
            time.sleep(1)  # the others take over before it is back
            cluster.start_node(node_id)
            cluster.wait_in_sync(SOURCE, TARGET, *INTERNAL)
            run.wait_until_copied()
        run.feeder.allow(records - 3 * share)
        run.judge()
    assert len(run.feeder.acknowledged_at) == records
    assert not waited_for_sessions(cluster)
    if client == "librdkafka":
        cluster.kill(*cluster.nodes)
        dumped_by_kafka(cluster)


def test_the_copy_through_a_kill_of_its_worker(cluster: Cluster, tmp_path: Path) -> None:
    with CopyRun(cluster, tmp_path) as run:
        run.feed(4_000)
        run.worker.kill()
        run.judge()
        assert run.worker.started_count > 1


def test_transaction_version_is_raised_under_load(cluster: Cluster, tmp_path: Path) -> None:
    with CopyRun(cluster, tmp_path, client="barnabas") as run:
        for level in (1, 2, 1, 2):
            run.feed(2_000)
            update = FeatureUpdateKey(
                feature="transaction.version", max_version_level=level, upgrade_type=1 + (level < 2)
            )
            answer = cluster.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)
            assert answer.error_code == 0, answer
        run.judge()


# -- what was acknowledged


def produce_request(topic: str, value: bytes, *, acks: int, timeout_ms: int = 5_000) -> ProduceRequest:
    batch = build_batch([NewRecord(None, value, int(time.time() * 1000))])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=[data])


@pytest.mark.parametrize("acks", [1, pytest.param(-1, marks=pytest.mark.soak)])
def test_a_zombie_leader_accepts_nothing(cluster: Cluster, acks: int) -> None:
    """Frozen for longer than its session, with a record waiting in its socket when it wakes."""
    cluster.create_topic("kept", 1, min__insync__replicas="2")
    zombie = cluster.leader("kept", 0)
    with Wire(cluster.nodes[zombie].address) as wire:
        first = wire.call(produce_request("kept", b"before", acks=-1), 9)
        assert first.responses[0].partition_responses[0].error_code == 0
        cluster.pause(zombie)
        cluster.wait_until(lambda: cluster.leader("kept", 0) not in (-1, zombie), "another one leads")
        correlation = wire.send(produce_request("kept", b"from the dead", acks=acks), 9)
        with Wire(cluster.nodes[cluster.leader("kept", 0)].address) as leader:
            after = leader.call(produce_request("kept", b"after", acks=-1), 9)
            assert after.responses[0].partition_responses[0].error_code == 0
        cluster.resume(zombie)
        try:
            answer = wire.receive(ProduceRequest.API_KEY, 9, correlation)
        except ConnectionError:
            pass  # an answer too: nothing was acknowledged
        else:
            code = answer.responses[0].partition_responses[0].error_code
            assert code in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.NOT_ENOUGH_REPLICAS,
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                ErrorCode.REQUEST_TIMED_OUT,
            )
    cluster.wait_in_sync("kept")
    assert read_all(cluster, "kept", 1, isolation_level="read_uncommitted")[0] == [b"before", b"after"]


# -- the cluster itself


def test_nodes_start_one_by_one_and_transactions_work_without_configuration(tmp_path: Path) -> None:
    nodes = barnabas_nodes(tmp_path)
    for node in nodes:
        node.launch()
        time.sleep(0.5)  # the first two find each other, and serve, before the third is there
    with Cluster(nodes) as cluster:
        cluster.create_topic(SOURCE, 2)
        cluster.wait_until(lambda: cluster.coordinator("copier") > 0, "there is a transaction coordinator")
        parts = cluster.partitions("__transaction_state")
        assert len(parts) == 50
        assert all(len(part.replica_nodes) == 3 for part in parts)


def test_a_replica_that_lags_is_not_in_sync_and_comes_back(start_cluster: StartCluster) -> None:
    cluster = start_cluster("replica.lag.time.max.ms=4000")
    cluster.create_topic("kept", 1, min__insync__replicas="2")
    leader = cluster.leader("kept", 0)
    follower = next(node_id for node_id in cluster.nodes if node_id != leader)
    cluster.pause(follower)
    with Wire(cluster.nodes[leader].address, timeout_s=120) as wire:
        for number in range(20):  # the first waits until the follower is out of sync, for 4 to 6 s on a quiet machine
            answer = wire.call(produce_request("kept", b"%d" % number, acks=-1, timeout_ms=60_000), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
    cluster.wait_until(lambda: follower not in cluster.partitions("kept")[0].isr_nodes, "it is out of sync", 60)
    cluster.resume(follower)
    cluster.wait_in_sync("kept")
    found = read_all(cluster, "kept", 1, isolation_level="read_uncommitted")
    assert found[0] == [b"%d" % number for number in range(20)]


@pytest.mark.soak  # in the suite: tests/unit/broker/replica/test_machine.py
def test_below_min_insync_nothing_is_acknowledged(cluster: Cluster) -> None:
    cluster.create_topic("kept", 1, min__insync__replicas="2")
    leader = cluster.leader("kept", 0)
    others = [node_id for node_id in cluster.nodes if node_id != leader]
    cluster.kill(*others)  # the quorum is gone too
    with Wire(cluster.nodes[leader].address) as wire:
        answer = wire.call(produce_request("kept", b"alone", acks=-1), 9)
        assert answer.responses[0].partition_responses[0].error_code in (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
    cluster.start()
    cluster.wait_in_sync("kept")
    assert cluster.ask(MetadataRequest(topics=[MetadataRequestTopic(name="kept")]), 9).topics[0].error_code == 0
