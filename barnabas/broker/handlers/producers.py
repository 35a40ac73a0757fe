"""Handles DescribeProducers, version 0, of the family `transactions`: lists the producers that a replica knows (KIP-664).

Behaviour: one entry for each producer id with state in the log: its last sequence, the coordinator epoch of its last marker and the first
offset of its open transaction. Administrators find hanging transactions with it. Followers answer, too.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.api.call import Call, Table
from barnabas.broker.authorization.permissions import AllowedNames, refusal_of
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse_each
from barnabas.broker.image.topic_names import validate_topic_name
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.transactions import (
    DescribeProducersPartitionResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
    ProducerState,
)
from barnabas.work import Steps, Work

PRODUCERS_PER_UNIT: Final = 8


def describe_producers(needs: Needs, call: Call[DescribeProducersRequest]) -> Work:
    """Lists active producers of partitions with a replica here."""
    response = DescribeProducersResponse()
    readable = AllowedNames(call.access, AclOperation.READ, AclResourceType.TOPIC)
    for topic in call.request.topics:
        result = DescribeProducersTopicResult(name=topic.name)
        response.topics.append(result)
        for number in topic.partition_indexes:
            result.partitions.append((yield from _partition(needs, topic.name, number, readable)))
            yield 1 + needs.replicas.take_opened_units()
    return response


def _partition(
    needs: Needs, topic: str, number: int, readable: AllowedNames
) -> Steps[DescribeProducersPartitionResult]:
    result = DescribeProducersPartitionResult(partition_index=number)
    try:
        validate_topic_name(topic)
        if topic not in readable:
            raise refusal_of(AclResourceType.TOPIC)
        if needs.current_image.image.topic(topic) is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        replica = needs.replicas.obtain(topic, number)
        if replica is None:
            raise BrokerError(needs.replicas.absence(topic, number))
        if replica.failed:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
    except BrokerError as error:
        result.error_code = error.code
        result.error_message = error.message
        return result
    entries = replica.log.producers.entries
    for count, producer_id in enumerate(list(entries)):
        entry = entries.get(producer_id)
        if entry is not None:  # else it has expired since
            result.active_producers.append(
                ProducerState(
                    producer_id=producer_id,
                    producer_epoch=entry.epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.last_timestamp,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=entry.transaction_first_offset,
                )
            )
        if count % PRODUCERS_PER_UNIT == 0:
            yield 1
    return result


HANDLERS: Final[Table] = {DescribeProducersRequest: (describe_producers, refuse_each)}
