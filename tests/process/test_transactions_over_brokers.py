"""Transactions whose coordinator, partitions and group live on different brokers, by raw requests, while single brokers fail.

What a client library would do again and again by itself is said here on purpose and once, so that each step can be cut short:
between PREPARE and a marker, while a leader is away, under a coordinator that was taken for dead and is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import OffsetFetchRequest
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import GROUP, Cluster
from tests.support.processes.kit_cluster import KitCluster
from tests.support.processes.raw_producer import (
    SETTINGS,
    TV1,
    TV2,
    Producer,
    is_stable,
    named,
    patiently,
    prepare,
    read_committed,
)

pytestmark = pytest.mark.process
EITHER = pytest.mark.parametrize("version", [pytest.param(TV1, marks=pytest.mark.soak), TV2])  # both do the same here


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes that miss each other after six seconds."""
    with KitCluster(*SETTINGS) as cluster:
        prepare(cluster)
        yield cluster


def partition_led_by(cluster: Cluster, topic: str, fits: Callable[[int], bool]) -> int:
    indexes: Iterator[int] = (part.partition_index for part in cluster.partitions(topic) if fits(part.leader_id))
    return next(indexes)


@EITHER
def test_a_leader_is_dead_during_the_commit_and_so_is_then_the_coordinator(cluster: Cluster, version: int) -> None:
    """The coordinator dies between PREPARE and a marker; the next one finds the transaction and writes what is missing."""
    coordinator, away = 1, 2
    producer = Producer(cluster, named(cluster, lambda led: led == coordinator), version)
    producer.init()
    reached = partition_led_by(cluster, "single", lambda led: led not in (coordinator, away))
    missing = partition_led_by(cluster, "single", lambda led: led == away)
    for partition in (reached, missing):
        assert producer.produce("single", partition, b"whole") is ErrorCode.NONE
    cluster.kill(away)
    assert producer.end() is ErrorCode.NONE
    producer.await_state("PrepareCommit")
    # Its marker is committed a little later: once the leader has heard, too, that the dead one is in sync no more.
    cluster.wait_until(lambda: read_committed(cluster, "single", reached) == [b"whole"], "the other marker is written")
    cluster.kill(coordinator)  # two of three are gone: nobody decides anything
    cluster.start_node(away)
    cluster.wait_until(lambda: producer.coordinator not in (-1, coordinator), "another one coordinates")
    producer.await_state("CompleteCommit")
    assert read_committed(cluster, "single", missing) == [b"whole"]
    cluster.start_node(coordinator)
    # The producer goes on as if nothing had been.
    for partition in (reached, missing):
        assert producer.produce("single", partition, b"more") is ErrorCode.NONE
    assert producer.end(commit=False) is ErrorCode.NONE
    producer.await_state("CompleteAbort")
    assert read_committed(cluster, "single", missing) == read_committed(cluster, "single", reached) == [b"whole"]


def test_a_frozen_leader_holds_up_its_own_marker_alone(cluster: Cluster) -> None:
    """Transactions of other partitions complete meanwhile; what waited completes after the thaw."""
    coordinator, frozen = 1, 2
    waiting = Producer(cluster, named(cluster, lambda led: led == coordinator, "w"), TV2)
    other = Producer(cluster, named(cluster, lambda led: led == coordinator, "o"), TV2)
    partition = partition_led_by(cluster, "single", lambda led: led == frozen)
    elsewhere = partition_led_by(cluster, "single", lambda led: led == coordinator)
    waiting.init()
    other.init()
    assert waiting.produce("single", partition, b"slow") is ErrorCode.NONE
    assert waiting.produce("single", elsewhere, b"slow") is ErrorCode.NONE
    cluster.pause(frozen)
    assert waiting.end() is ErrorCode.NONE
    for number in range(3):
        assert other.produce("single", elsewhere, b"%d" % number) is ErrorCode.NONE
        assert other.end() is ErrorCode.NONE
        other.await_state("CompleteCommit")
    assert waiting.state() == "PrepareCommit"
    cluster.resume(frozen)
    waiting.await_state("CompleteCommit", 40)
    assert read_committed(cluster, "single", partition) == [b"slow"]
    assert read_committed(cluster, "single", elsewhere) == [b"slow", b"0", b"1", b"2"]


@EITHER
def test_a_coordinator_taken_for_dead_changes_nothing_when_it_wakes(cluster: Cluster, version: int) -> None:
    zombie = 3
    producer = Producer(cluster, named(cluster, lambda led: led == zombie), version)
    producer.init()
    partition = partition_led_by(cluster, "safe", lambda led: led != zombie)
    assert producer.produce("safe", partition, b"first") is ErrorCode.NONE
    cluster.pause(zombie)
    cluster.wait_until(lambda: producer.coordinator not in (-1, zombie), "another one coordinates")
    # What the old one was told lies in its socket until it wakes: an outcome for a transaction that is decided otherwise.
    with Wire(cluster.nodes[zombie].address) as wire:
        late = EndTxnRequest(
            transactional_id=producer.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=False,
        )
        correlation = wire.send(late, 3)
        assert producer.end() is ErrorCode.NONE
        producer.await_state("CompleteCommit")
        assert producer.produce("safe", partition, b"second") is ErrorCode.NONE
        cluster.resume(zombie)
        try:
            code = ErrorCode(wire.receive(EndTxnRequest.API_KEY, 3, correlation).error_code)
        except ConnectionError:
            pass
        else:
            assert code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    cluster.wait_in_sync("safe", "__transaction_state")
    producer.await_state("Ongoing")  # its coordinator may be moving back, and loads
    assert producer.end() is ErrorCode.NONE
    producer.await_state("CompleteCommit")
    assert read_committed(cluster, "safe", partition) == [b"first", b"second"]


@pytest.mark.parametrize("version", [TV1, TV2])
def test_late_requests_of_an_ended_transaction(cluster: Cluster, version: int) -> None:
    """Produce after the markers, additions and an end of the transaction before: none has an effect on the next one."""
    producer = Producer(cluster, named(cluster, lambda led: led == 1), version)
    producer.init()
    partition = partition_led_by(cluster, "safe", lambda led: led != 1)
    other = partition_led_by(cluster, "safe", lambda led: led not in (1, cluster.leader("safe", partition)))
    epoch = producer.epoch
    assert producer.produce("safe", partition, b"first") is ErrorCode.NONE
    assert producer.end() is ErrorCode.NONE
    producer.await_state("CompleteCommit")
    late = patiently(lambda: producer.produce_once("safe", partition, b"late", epoch=epoch, sequence=1))
    if version >= TV2:
        assert late is ErrorCode.INVALID_PRODUCER_EPOCH
        assert producer.produce_once("safe", other, b"late", epoch=epoch) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert producer.add(("safe", other), epoch=epoch) is ErrorCode.PRODUCER_FENCED
    else:
        assert late is ErrorCode.TRANSACTION_ABORTABLE
    assert producer.state() == "CompleteCommit"
    assert producer.produce("safe", other, b"second") is ErrorCode.NONE
    if version >= TV2:
        assert producer.end(commit=False, once=True, epoch=epoch) is ErrorCode.PRODUCER_FENCED
        assert producer.end() is ErrorCode.NONE
        # The repetition of an answered end tells its own outcome, never another.
        assert producer.end(commit=False, once=True, epoch=epoch + 1) in (
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
    else:
        assert producer.end() is ErrorCode.NONE
    producer.await_state("CompleteCommit")
    assert read_committed(cluster, "safe", partition) == [b"first"]
    assert read_committed(cluster, "safe", other) == [b"second"]
    cluster.wait_until(lambda: is_stable(cluster, partition) and is_stable(cluster, other), "nothing hangs", 30)


@pytest.mark.parametrize("version", [TV1, TV2])
def test_offsets_of_a_group_on_another_broker_that_dies(cluster: Cluster, version: int) -> None:
    """TxnOffsetCommit is verified, or added, across brokers; the group's next coordinator knows what was committed."""
    group = named(cluster, lambda led: led > 0, f"g{version}")
    home = cluster.coordinator(group, GROUP)
    producer = Producer(cluster, named(cluster, lambda led: led != home), version)
    producer.init()

    def commit_offset(offset: int) -> ErrorCode:
        if version < TV2:
            request = AddOffsetsToTxnRequest(
                transactional_id=producer.name,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=group,
            )
            assert patiently(lambda: int(producer.ask(request, 3).error_code)) is ErrorCode.NONE
        offsets = TxnOffsetCommitRequest(
            transactional_id=producer.name,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=-1,
            member_id="",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="safe",
                    partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
                )
            ],
        )

        def ask() -> int:
            answer = cluster.ask(offsets, 5 if version >= TV2 else 4, of=cluster.coordinator(group, GROUP))
            return int(answer.topics[0].partitions[0].error_code)

        return patiently(ask)

    def committed() -> int:
        request = OffsetFetchRequest(
            group_id=group, topics=[TopicPartitionIndexes(name="safe", partition_indexes=[0])], require_stable=True
        )
        answer = cluster.ask(request, 7, of=cluster.coordinator(group, GROUP))
        return int(answer.topics[0].partitions[0].committed_offset)

    assert commit_offset(7) is ErrorCode.NONE
    assert producer.end() is ErrorCode.NONE
    producer.await_state("CompleteCommit")
    assert committed() == 7
    assert commit_offset(8) is ErrorCode.NONE
    cluster.kill(home)
    cluster.wait_until(lambda: cluster.coordinator(group, GROUP) not in (-1, home), "another one coordinates")
    assert producer.end() is ErrorCode.NONE
    producer.await_state("CompleteCommit")
    cluster.wait_until(lambda: committed() == 8, "the offset is committed")
    assert commit_offset(9) is ErrorCode.NONE
    assert producer.end(commit=False) is ErrorCode.NONE
    producer.await_state("CompleteAbort")
    cluster.wait_until(lambda: committed() == 8, "the aborted offset is not")
