"""A refusal of a whole request has one error for each thing that it names."""

from __future__ import annotations

from typing import Any, cast

import pytest

from barnabas.broker.api.call import Call, Origin, Table
from barnabas.broker.handlers import admin, group_offsets, quotas, scram_users, txn_offsets
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)
from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.protocol.messages.quotas import AlterClientQuotasRequest, QuotaAlteration
from barnabas.protocol.messages.scram_users import AlterUserScramCredentialsRequest, ScramCredentialDeletion
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.protocol.schema import Message

NAMES = [f"n{number}" for number in range(20)]
REFUSED = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")


def requests(count: int) -> list[tuple[Message, int, Table, str]]:
    """Each request with its version, its handlers, and where its answer has one error for each element."""
    names = NAMES[:count]
    return [
        (CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in names]), 7, admin.HANDLERS, "topics"),
        (DeleteTopicsRequest(topic_names=names), 5, admin.HANDLERS, "responses"),
        (
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name) for name in names]),
            3,
            admin.HANDLERS,
            "results",
        ),
        (
            ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=list(range(count)))]),
            2,
            admin.HANDLERS,
            "replica_election_results.partition_result",
        ),
        (
            AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name=name) for name in names]),
            0,
            scram_users.HANDLERS,
            "results",
        ),
        (AlterClientQuotasRequest(entries=[QuotaAlteration() for _ in names]), 1, quotas.HANDLERS, "entries"),
        (
            OffsetCommitRequest(
                topics=[
                    OffsetCommitRequestTopic(
                        name="t",
                        partitions=[OffsetCommitRequestPartition(partition_index=each) for each in range(count)],
                    )
                ]
            ),
            8,
            group_offsets.HANDLERS,
            "topics.partitions",
        ),
        (
            TxnOffsetCommitRequest(
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name="t",
                        partitions=[TxnOffsetCommitRequestPartition(partition_index=each) for each in range(count)],
                    )
                ]
            ),
            3,
            txn_offsets.HANDLERS,
            "topics.partitions",
        ),
    ]


IDS = [type(request).__name__ for request, *_ in requests(1)]


def refused(request: Message, version: int, table: Table) -> Any:
    call = Call(request, version, request.API_KEY, "c", cast(Origin, None), "h")
    return table[type(request)][1](call, REFUSED)


def errors(answer: Any, where: str) -> list[int]:
    items = [answer]
    for name in where.split("."):
        items = [each for item in items for each in getattr(item, name)]
    return [item.error_code for item in items]


@pytest.mark.parametrize("place", range(len(IDS)), ids=IDS)
def test_a_refusal_has_an_error_for_each_element(place: int) -> None:
    request, version, table, where = requests(20)[place]
    answer = refused(request, version, table)
    assert isinstance(answer, Message)
    assert errors(answer, where) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 20
