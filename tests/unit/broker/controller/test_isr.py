"""AlterPartition as a compare-and-set, and the elections that somebody asks for."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.controller.core.isr import alter_partition, balance_leaders, elect_leaders, elect_unclean_leaders
from barnabas.broker.controller.core.registration import fence_broker, shut_down_broker
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import ConfigRecord
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import ElectLeadersRequest
from barnabas.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
)
from barnabas.protocol.messages.shared import TopicPartitions
from tests.support.broker.alter_partition import TOPIC, ask, result
from tests.support.broker.metadata_images import cluster, register, replayed, view, with_topic


def three(isr: tuple[int, ...] = (1, 2, 3), leader: int = 1) -> MetadataImage:
    return with_topic(cluster((1, 2, 3)), "t", TOPIC, ((1, 2, 3), isr, leader))


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    image = three()
    decision = ask(image, (1, 2))
    answer = result(decision)
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, 1, 0)
    assert (answer.isr, answer.partition_epoch) == ([1, 2], 1)
    image = replayed(image, decision.records)
    assert image.partition("t", 0).isr == (1, 2)  # type: ignore[union-attr]
    decision = ask(image, (1, 2, 3), partition_epoch=1)
    assert (result(decision).isr, result(decision).partition_epoch) == ([1, 2, 3], 2)


def test_what_changes_nothing_writes_nothing() -> None:
    decision = ask(three(), (1, 2, 3))
    assert (list(decision.records), result(decision).error_code, result(decision).partition_epoch) == ([], 0, 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"broker": 2, "isr": (1, 2)}, ErrorCode.INVALID_REQUEST),  # not the leader
        ({"isr": (2, 3)}, ErrorCode.INVALID_REQUEST),  # without itself
        ({"isr": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 9)}, ErrorCode.INVALID_REQUEST),  # no replica
        ({"isr": (1,), "leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),  # recovered is recovered
        ({"partition_index": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"epochs": {2: 1}}, ErrorCode.INELIGIBLE_REPLICA),  # it has started anew since
        ({"epochs": {2: -1}}, ErrorCode.NONE),  # version 2 knows no broker epochs
    ],
)
def test_refusals(request_: dict[str, Any], code: ErrorCode) -> None:
    decision = ask(three(), **request_)
    assert result(decision).error_code == code
    assert bool(decision.records) == (code == ErrorCode.NONE)


def test_nobody_gets_in_sync_while_fenced_or_leaving() -> None:
    image = three((1,))
    for leave in (fence_broker, shut_down_broker):
        gone = replayed(image, leave(view(image), 2))
        assert result(ask(gone, (1, 2))).error_code == ErrorCode.INELIGIBLE_REPLICA
    back = register(replayed(image, fence_broker(view(image), 2)), 2)
    assert result(ask(back, (1, 2))).error_code == ErrorCode.NONE
    assert result(ask(back, (1, 2), epochs={2: image.brokers[2].epoch})).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_an_unknown_topic_and_a_stale_leader() -> None:
    image = three()
    request = AlterPartitionRequest(broker_id=1, broker_epoch=image.brokers[1].epoch)
    request.topics = [
        AlterPartitionRequestTopic(topic_id=bytes(15) + b"x", partitions=[AlterPartitionRequestPartition()])
    ]
    assert result(alter_partition(view(image), request)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    request.broker_epoch -= 1
    with pytest.raises(BrokerError, match="STALE_BROKER_EPOCH"):
        alter_partition(view(image), request)


def elect(image: MetadataImage, *partitions: int, unclean: bool = False, topic: str = "t") -> Any:
    wanted = [TopicPartitions(topic=topic, partitions=list(partitions))] if partitions else None
    return elect_leaders(view(image), ElectLeadersRequest(election_type=int(unclean), topic_partitions=wanted))


def outcomes(decision: Any) -> list[tuple[int, int]]:
    return [
        (each.partition_id, each.error_code)
        for topic in decision.answer.replica_election_results
        for each in topic.partition_result
    ]


def test_preferred_leaders_on_request() -> None:
    image = with_topic(cluster((1, 2, 3)), "t", TOPIC, ((1, 2, 3), (2, 1), 2), ((2, 1), (2, 1), 2), ((3, 1), (1,), 1))
    assert outcomes(elect(image)) == [(0, 0), (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    decision = elect(image, 0, 1, 5)
    assert outcomes(decision) == [
        (0, 0),
        (1, ErrorCode.ELECTION_NOT_NEEDED),
        (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert replayed(image, decision.records).partition("t", 0).leader == 1  # type: ignore[union-attr]
    assert outcomes(elect(image, 0, topic="u")) == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert len(elect(image, 0, 0).records) == 1  # named twice, elected once


def test_unclean_leaders_on_request() -> None:
    image = with_topic(cluster((1, 2, 3)), "t", TOPIC, ((1, 2, 3), (1,), 1))
    image = replayed(image, fence_broker(view(image), 1))
    assert image.partition("t", 0).leader == -1  # type: ignore[union-attr]
    decision = elect(image, 0, unclean=True)
    assert outcomes(decision) == [(0, 0)]
    after = replayed(image, decision.records).partition("t", 0)
    assert after is not None
    assert (after.leader, after.isr, after.leader_recovery_state) == (2, (2,), 1)
    assert outcomes(elect(three(), 0, unclean=True)) == [(0, ErrorCode.ELECTION_NOT_NEEDED)]
    with pytest.raises(BrokerError, match="INVALID_REQUEST"):
        elect_leaders(view(image), ElectLeadersRequest(election_type=2))


def test_the_controller_balances_and_rescues_by_itself() -> None:
    image = with_topic(cluster((1, 2, 3)), "t", TOPIC, ((1, 2, 3), (2, 1), 2), ((1, 2), (1,), 1))
    balanced = replayed(image, balance_leaders(view(image)).records)
    assert [partition.leader for _, _, partition in balanced.partitions()] == [1, 1]
    assert balance_leaders(view(balanced)).records == []
    lost = replayed(balanced, fence_broker(view(balanced), 1))
    assert [partition.leader for _, _, partition in lost.partitions()] == [2, -1]
    assert elect_unclean_leaders(view(lost)).records == []
    allowed = replayed(
        lost, [ConfigRecord(resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true")]
    )
    rescued = replayed(allowed, elect_unclean_leaders(view(allowed)).records)
    assert [partition.leader for _, _, partition in rescued.partitions()] == [2, 2]
