"""Partition reassignment: AlterPartitionReassignments, ListPartitionReassignments (KIP-455, KIP-860); error texts of Kafka's
ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision, check_record_count
from barnabas.broker.controller.core.elections import ElectionKind, Elections, unclean_elections_enabled
from barnabas.broker.controller.core.placement import check_assignment
from barnabas.broker.image.assignment import Assignment
from barnabas.broker.image.image import PartitionImage, TopicImage
from barnabas.broker.image.records import MetadataRecord, PartitionChangeRecord
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from barnabas.work import Work


@LongDecision[AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse]
def alter_reassignments(view: ClusterView, request: AlterPartitionReassignmentsRequest) -> Work:
    """Each partition separately. The AlterPartition that adds the last new replica to the ISR completes one (`Elections.change`)."""
    elections = Elections(view.image, view.config)
    records: dict[tuple[str, int], MetadataRecord] = {}
    responses = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            yield 1
            result = ReassignablePartitionResponse(partition_index=wanted.partition_index, error_message=None)
            results.append(result)
            try:
                change = _alter(view, elections, topic.name, wanted, request.allow_replication_factor_change)
            except BrokerError as error:
                result.error_code, result.error_message = error.code, error.message
                continue
            records.pop((topic.name, wanted.partition_index), None)
            if change is not None:
                records[topic.name, wanted.partition_index] = change
                check_record_count(len(records))
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
    answer = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None, responses=responses
    )
    return MetadataDecision(answer, list(records.values()))


def _alter(
    view: ClusterView, elections: Elections, name: str, wanted: ReassignablePartition, allow_factor: bool
) -> PartitionChangeRecord | None:
    topic, number = view.image.topic(name), wanted.partition_index
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= number < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
    partition = topic.partitions[number]
    if wanted.replicas is None:
        return _cancel(view, elections, topic, number)
    check_assignment(view.image, wanted.replicas)
    if not allow_factor:
        _check_factor(partition, wanted.replicas)
    return elections.change(topic, number, assignment=Assignment.of(partition).towards(wanted.replicas))


def _check_factor(partition: PartitionImage, target: Sequence[int]) -> None:
    present = len(partition.replicas) - len(partition.removing_replicas)
    if len(target) != present:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {present} to {len(target)}",
        )


def _cancel(view: ClusterView, elections: Elections, topic: TopicImage, number: int) -> PartitionChangeRecord | None:
    held = Assignment.of(topic.partitions[number])
    if not held.moving:
        raise BrokerError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    isr = [member for member in topic.partitions[number].isr if member not in held.adding]
    kind = None
    if not isr:
        if not unclean_elections_enabled(view.image, view.config, topic.name):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{number} because it would require an unclean "
                f"leader election.",
            )
        kind = ElectionKind.UNCLEAN
    return elections.change(topic, number, isr=isr, kind=kind, assignment=held.cancelled())


@LongDecision[ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse]
def list_partition_reassignments(view: ClusterView, request: ListPartitionReassignmentsRequest) -> Work:
    """Reassignments in progress, of the named partitions or of all."""
    image = view.image
    wanted: list[tuple[TopicImage, Sequence[int]]]
    if request.topics is None:
        wanted = [(topic, range(len(topic.partitions))) for topic in image.topics_by_name.values()]
    else:
        found = [(image.topic(topic.name), topic.partition_indexes) for topic in request.topics]
        wanted = [(topic, numbers) for topic, numbers in found if topic is not None]
    topics = []
    for topic, numbers in wanted:
        partitions = []
        for number in numbers:
            yield 1
            if 0 <= number < len(topic.partitions) and (held := Assignment.of(topic.partitions[number])).moving:
                partitions.append(
                    OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=list(held.replicas),
                        adding_replicas=list(held.adding),
                        removing_replicas=list(held.removing),
                    )
                )
        if partitions:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=partitions))
    return MetadataDecision(ListPartitionReassignmentsResponse(error_message=None, topics=topics))
