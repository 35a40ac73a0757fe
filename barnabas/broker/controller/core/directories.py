"""Decisions on log directories (KIP-858): the directory of each replica, and failed directories."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision
from barnabas.broker.controller.core.elections import Elections
from barnabas.broker.controller.core.registration import check_broker_epoch
from barnabas.broker.image.image import BrokerImage, TopicImage
from barnabas.broker.image.records import BrokerRegistrationChangeRecord, MetadataRecord, PartitionChangeRecord
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.cluster import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectory,
    AssignReplicasToDirsResponseTopic,
)
from barnabas.protocol.messages.shared import PartitionResult
from barnabas.work import Work


def directories_offline(view: ClusterView, broker: BrokerImage, offline: Sequence[bytes]) -> list[MetadataRecord]:
    """Changes after a broker reports failed directories and still has others; no records for directories known to have failed."""
    lost = [directory for directory in broker.directories if directory in offline]
    if not lost:
        return []
    # A failed directory serves again after a restart at the earliest, and may be empty then: no eligible leaders.
    elections = Elections(view.image, view.config, lost=broker.broker_id)
    records: list[MetadataRecord] = []
    for topic, number, partition in view.image.partitions():
        if broker.broker_id not in partition.replicas:
            continue
        index = partition.replicas.index(broker.broker_id)
        if index < len(partition.directories) and partition.directories[index] in lost:
            change = elections.change(topic, number)
            if change is not None:
                records.append(change)
    left = [directory for directory in broker.directories if directory not in lost]
    registration = BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, log_dirs=left)
    return [*records, registration]


@LongDecision[AssignReplicasToDirsRequest, AssignReplicasToDirsResponse]
def assign_replicas(view: ClusterView, request: AssignReplicasToDirsRequest) -> Work:
    """A broker with several `log.dirs` places new replicas itself and reports their directories. Raises BrokerError(STALE_BROKER_EPOCH)."""
    broker = check_broker_epoch(view.image, request.broker_id, request.broker_epoch)
    online, offline = Elections(view.image, view.config), Elections(view.image, view.config, departing=broker.broker_id)
    records: list[MetadataRecord] = []
    answers = []
    for directory in request.directories:
        elections = online if directory.id in broker.directories else offline
        topics = []
        for wanted in directory.topics:
            topic = view.image.topic_by_id(wanted.topic_id)
            results = []
            for each in wanted.partitions:
                yield 1
                code, change = _assign(elections, topic, each.partition_index, broker.broker_id, directory.id)
                results.append(PartitionResult(partition_index=each.partition_index, error_code=code))
                if change is not None:
                    records.append(change)
            topics.append(AssignReplicasToDirsResponseTopic(topic_id=wanted.topic_id, partitions=results))
        answers.append(AssignReplicasToDirsResponseDirectory(id=directory.id, topics=topics))
    return MetadataDecision(AssignReplicasToDirsResponse(directories=answers), records)


def _assign(
    elections: Elections, topic: TopicImage | None, number: int, broker_id: int, directory: bytes
) -> tuple[ErrorCode, PartitionChangeRecord | None]:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, None
    if not 0 <= number < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    partition = topic.partitions[number]
    if broker_id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    directories = list(partition.directories) or [bytes(16)] * len(partition.replicas)
    directories[partition.replicas.index(broker_id)] = directory
    return ErrorCode.NONE, elections.change(topic, number, directories=directories)
