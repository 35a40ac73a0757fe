"""Partitions on the move: what is begun, what ends it, what cancels it, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.controller.core.reassignments import alter_reassignments, list_partition_reassignments
from barnabas.broker.controller.core.registration import fence_broker
from barnabas.broker.image.assignment import Assignment
from barnabas.broker.image.image import MetadataImage, PartitionImage
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from tests.support.broker.alter_partition import TOPIC, ask, result
from tests.support.broker.metadata_images import cluster, replayed, view, with_topic


def on(replicas: tuple[int, ...], isr: tuple[int, ...] | None = None) -> MetadataImage:
    return with_topic(cluster((1, 2, 3, 4)), "t", TOPIC, (replicas, isr or replicas, (isr or replicas)[0]))


def move(image: MetadataImage, target: list[int] | None, *, topic: str = "t", number: int = 0, **fields: Any) -> Any:
    partition = ReassignablePartition(partition_index=number, replicas=target)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])], **fields
    )
    return alter_reassignments(view(image), request)


def moved(image: MetadataImage, target: list[int] | None) -> MetadataImage:
    decision = move(image, target)
    assert outcome(decision) == (0, None)
    return replayed(image, decision.records)


def outcome(decision: Any) -> tuple[int, str | None]:
    ((only,),) = [topic.partitions for topic in decision.answer.responses]
    return only.error_code, only.error_message


def partition(image: MetadataImage) -> PartitionImage:
    found = image.partition("t", 0)
    assert found is not None
    return found


def held(image: MetadataImage) -> Assignment:
    return Assignment.of(partition(image))


def in_sync(image: MetadataImage, *isr: int) -> tuple[MetadataImage, Any]:
    """After the leader has asked for this ISR, with what it was answered."""
    now = partition(image)
    decision = ask(image, isr, broker=now.leader, leader_epoch=now.leader_epoch, partition_epoch=now.partition_epoch)
    return replayed(image, decision.records), result(decision)


def test_a_partition_moves_once_the_new_ones_are_in_sync() -> None:
    image = moved(on((1, 2)), [3, 4])
    assert held(image) == Assignment((3, 4, 1, 2), adding=(3, 4), removing=(1, 2))
    assert (partition(image).isr, partition(image).leader, partition(image).leader_epoch) == ((1, 2), 1, 0)
    assert len(partition(image).directories) == 4
    image, answer = in_sync(image, 1, 2, 3)
    assert (answer.error_code, held(image).moving) == (0, True)
    image, answer = in_sync(image, 1, 2, 3, 4)
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    assert held(image) == Assignment((3, 4))
    assert (partition(image).isr, partition(image).leader, partition(image).leader_epoch) == ((3, 4), 3, 1)
    assert len(partition(image).directories) == 2


def test_a_leader_that_stays_begins_a_new_epoch_without_those_that_go() -> None:
    image, answer = in_sync(moved(on((1, 2)), [1, 3]), 1, 2, 3)
    assert held(image) == Assignment((1, 3))
    assert (answer.error_code, answer.leader_id, answer.leader_epoch, answer.isr) == (0, 1, 1, [1, 3])


def test_fewer_replicas_need_no_wait() -> None:
    image = moved(on((1, 2, 3)), [2, 3])
    assert held(image) == Assignment((2, 3))
    assert (partition(image).isr, partition(image).leader, partition(image).leader_epoch) == ((2, 3), 2, 1)


def test_fewer_replicas_wait_for_those_that_stay() -> None:
    image = moved(on((1, 2, 3), (1, 2)), [2, 3])
    assert held(image) == Assignment((2, 3, 1), removing=(1,))
    image, _ = in_sync(image, 1, 2, 3)
    assert held(image) == Assignment((2, 3))


def test_another_order_is_no_move_and_no_new_epoch() -> None:
    image = moved(on((1, 2)), [2, 1])
    assert held(image) == Assignment((2, 1))
    assert (partition(image).leader, partition(image).leader_epoch) == (1, 0)
    assert list(move(image, [2, 1]).records) == []


def test_a_move_is_cancelled() -> None:
    image, _ = in_sync(moved(on((1, 2)), [3, 4]), 1, 2, 3)
    image = moved(image, None)
    assert held(image) == Assignment((1, 2))
    assert (partition(image).isr, partition(image).leader) == ((1, 2), 1)


def test_a_move_is_not_cancelled_where_only_the_new_ones_are_left() -> None:
    image, _ = in_sync(moved(on((1,)), [3, 4]), 1, 3)
    image = replayed(image, fence_broker(view(image), 1))
    image, _ = in_sync(image, 3)
    assert partition(image).isr == (3,)
    code, text = outcome(move(image, None))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert text == (
        "Unable to revert partition assignment for t:0 because it would require an unclean leader election."
    )


def test_another_target_replaces_the_first() -> None:
    image = moved(moved(on((1, 2)), [3, 4]), [1, 4])
    assert held(image) == Assignment((1, 4, 2, 3), removing=(2, 3))
    image, _ = in_sync(image, 1, 2, 4)
    assert held(image) == Assignment((1, 4))


@pytest.mark.parametrize(
    ("target", "where", "code", "text"),
    [
        ([3], {"topic": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named u."),
        ([3], {"number": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:7."),
        (None, {}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
        ([], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        ([3, 3], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 3 more than once"),
        ([3, 9], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9, but no such broker is registered"),
        (
            [3],
            {"allow_replication_factor_change": False},
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "changed from 2 to 1",
        ),
    ],
)
def test_what_is_refused(target: list[int] | None, where: dict[str, Any], code: ErrorCode, text: str) -> None:
    decision = move(on((1, 2)), target, **where)
    assert list(decision.records) == []
    said = outcome(decision)
    assert said[0] == code
    assert text in (said[1] or "")


def test_what_is_on_the_move_is_listed() -> None:
    image = with_topic(moved(on((1, 2)), [3, 2]), "still", bytes(15) + b"s", ((1,), (1,), 1))

    def listed(topics: list[TopicPartitionIndexes] | None) -> list[tuple[Any, ...]]:
        answer = list_partition_reassignments(view(image), ListPartitionReassignmentsRequest(topics=topics)).answer
        return [
            (topic.name, each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
            for topic in answer.topics
            for each in topic.partitions
        ]

    found = [("t", 0, [3, 2, 1], [3], [1])]
    assert listed(None) == found
    asked = [TopicPartitionIndexes(name=name, partition_indexes=[0, 1]) for name in ("t", "still", "unknown")]
    assert listed(asked) == found
    assert listed([]) == []
