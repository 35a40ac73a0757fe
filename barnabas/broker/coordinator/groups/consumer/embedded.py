"""Consumer embedded protocol: subscriptions and assignments in JoinGroup and SyncGroup.
Only consumer groups read and write them, for members of the classic protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.member import Owned, PartitionEpochs
from barnabas.broker.coordinator.groups.topics import Topics
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import decode_versioned, encode_versioned

VERSION_MAX = 3  # newer versions are read as this one, as in Kafka


def _known_version(data: bytes) -> bytes:
    version = int.from_bytes(data[:2], "big", signed=True)
    return data if version <= VERSION_MAX else VERSION_MAX.to_bytes(2, "big") + data[2:]


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Raises BrokerError(INCONSISTENT_GROUP_PROTOCOL) for malformed bytes."""
    try:
        return decode_versioned(ConsumerProtocolSubscription, _known_version(data))
    except RemoteProtocolError as error:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a subscription cannot be read: {error}") from None


def read_assignment(data: bytes, topics: Topics) -> Partitions:
    """Leaves out topics that do not exist; raises as `read_subscription`."""
    if not data:
        return {}
    try:
        read = decode_versioned(ConsumerProtocolAssignment, _known_version(data))
    except RemoteProtocolError as error:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"an assignment cannot be read: {error}") from None
    return {
        topic_id: tuple(sorted(set(each.partitions)))
        for each in read.assigned_partitions
        if each.partitions and (topic_id := topics.topic_id(each.topic)) is not None
    }


def assignment_bytes(assigned: PartitionEpochs | Partitions, subscription: bytes, topics: Topics) -> bytes:
    version = min(max(int.from_bytes(subscription[:2], "big", signed=True), 0), VERSION_MAX)
    value = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartitions(topic=name, partitions=list(numbers))
            for topic_id, numbers in assigned.items()
            if (name := topics.topic_name(topic_id)) is not None
        ]
    )
    return encode_versioned(value, version)


def owned_by_name(partitions: Sequence[TopicPartitions], topics: Topics) -> Owned:
    """Owned partitions of a subscription by topic id, without topics that do not exist."""
    named = ((topics.topic_id(each.topic), each.partitions) for each in partitions)
    return frozenset((topic_id, n) for topic_id, numbers in named if topic_id is not None for n in numbers)
