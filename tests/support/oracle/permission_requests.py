"""The requests of `permission_cases`: what users with different permissions ask. They change little, so that one world serves all cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from barnabas.protocol.messages import admin, groups, offsets, transactions
from barnabas.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from barnabas.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from barnabas.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
    QuotaAlteration,
    QuotaOperation,
)
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramUserName,
)
from barnabas.protocol.records import NewRecord, build_batch

OPEN, SHUT, DOOMED = "open", "shut", "doomed"
TOPICS = (OPEN, SHUT, DOOMED)
OWNER = "owner"  # of delegation tokens
GROUP, MEMBERS, TRANSACTION = "offsets-group", "members-group", "transfer"


class World(NamedTuple):
    """What differs between two clusters: ids of topics."""

    ids: dict[str, bytes]


def produce(w: World, *, by_id: bool = False, transactional: bool = False, missing: bool = False) -> ProduceRequest:
    records = build_batch(
        [NewRecord(None, b"x", 1_700_000_000_000)],
        producer_id=999_999 if transactional else -1,
        producer_epoch=0 if transactional else -1,
        base_sequence=0 if transactional else -1,
        transactional=transactional,
    )
    data = [PartitionProduceData(index=0, records=records)]
    names = [SHUT, "missing"] if missing else [SHUT]
    topics = [
        TopicProduceData(name=name, topic_id=w.ids.get(name, bytes(16)) if by_id else bytes(16), partition_data=data)
        for name in names
    ]
    return ProduceRequest(
        transactional_id=TRANSACTION if transactional else None, acks=-1, timeout_ms=5_000, topic_data=topics
    )


def fetch(w: World, version: int, *, follower: bool = False) -> FetchRequest:
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000, log_start_offset=0)]
    names = [OPEN, SHUT] if version >= 13 else [OPEN, SHUT, "missing"]
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=1_000,
        topics=[FetchTopic(topic=name, topic_id=w.ids.get(name, bytes(16)), partitions=parts) for name in names],
    )
    if follower and version >= 15:
        request.replica_state = ReplicaState(replica_id=77, replica_epoch=-1)
    elif follower:
        request.replica_id = 77
    return request


def list_offsets(_w: World) -> offsets.ListOffsetsRequest:
    parts = [offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[offsets.ListOffsetsTopic(name=name, partitions=parts) for name in (OPEN, SHUT, "missing")],
    )


def epochs(_w: World) -> offsets.OffsetForLeaderEpochRequest:
    parts = [offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    return offsets.OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[offsets.OffsetForLeaderTopic(topic=name, partitions=parts) for name in (OPEN, SHUT)]
    )


def metadata(*names: str, create: bool = False, operations: bool = False) -> Callable[[World], MetadataRequest]:
    return lambda _w: MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names] if names else None,
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=operations,
        include_topic_authorized_operations=operations,
    )


def metadata_by_id(w: World) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=one, name=None) for one in (w.ids[SHUT], bytes([9] * 16))],
        allow_auto_topic_creation=False,
    )


def offset_commit(w: World, version: int) -> groups.OffsetCommitRequest:
    parts = [groups.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")]
    names = [OPEN, SHUT] if version >= 10 else [OPEN, SHUT, "missing"]
    return groups.OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            groups.OffsetCommitRequestTopic(
                name=name, topic_id=w.ids.get(name, bytes(16)) if version >= 10 else bytes(16), partitions=parts
            )
            for name in names
        ],
    )


def offset_fetch(w: World, version: int, *, everything: bool = False) -> groups.OffsetFetchRequest:
    if version < 8:
        old = [groups.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in (OPEN, SHUT)]
        return groups.OffsetFetchRequest(group_id=GROUP, topics=None if everything else old)
    named = [
        groups.OffsetFetchRequestTopics(
            name=name, topic_id=w.ids[name] if version >= 10 else bytes(16), partition_indexes=[0]
        )
        for name in (OPEN, SHUT)
    ]
    wanted = groups.OffsetFetchRequestGroup(group_id=GROUP, topics=None if everything else named)
    return groups.OffsetFetchRequest(groups=[wanted])


def offset_delete(name: str) -> Callable[[World], groups.OffsetDeleteRequest]:
    parts = [groups.OffsetDeleteRequestPartition(partition_index=7)]
    topics = [groups.OffsetDeleteRequestTopic(name=topic, partitions=parts) for topic in (OPEN, SHUT)]
    return lambda _w: groups.OffsetDeleteRequest(group_id=name, topics=topics)


def coordinators(version: int, kind: int) -> Callable[[World], groups.FindCoordinatorRequest]:
    key = (GROUP, TRANSACTION)[kind]
    if version >= 4:
        return lambda _w: groups.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key, "another"])
    return lambda _w: groups.FindCoordinatorRequest(key_type=kind, key=key)


def configs(kind: int, name: str) -> Callable[[World], admin.DescribeConfigsRequest]:
    resource = admin.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=["retention.ms", "log.retention.ms"]
    )
    return lambda _w: admin.DescribeConfigsRequest(resources=[resource])


def increment(kind: int, name: str, key: str, value: str) -> Callable[[World], admin.IncrementalAlterConfigsRequest]:
    resource = admin.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[admin.AlterableConfig(name=key, config_operation=0, value=value)],
    )
    return lambda _w: admin.IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)


def replace(kind: int, name: str, key: str, value: str) -> Callable[[World], admin.AlterConfigsRequest]:
    resource = admin.AlterConfigsRequestResource(
        resource_type=kind, resource_name=name, configs=[admin.AlterConfigsRequestConfig(name=key, value=value)]
    )
    return lambda _w: admin.AlterConfigsRequest(resources=[resource], validate_only=True)


def creation(_w: World) -> admin.CreateTopicsRequest:
    topics = [
        admin.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("fresh", SHUT, "twice", "twice")
    ]
    return admin.CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True)


def deletion_by_name(_w: World) -> admin.DeleteTopicsRequest:
    return admin.DeleteTopicsRequest(topic_names=[DOOMED, "missing"], timeout_ms=10_000)


def deletion_by_id(w: World) -> admin.DeleteTopicsRequest:
    unknown = bytes([9] * 16)
    return admin.DeleteTopicsRequest(
        topics=[admin.DeleteTopicState(topic_id=one) for one in (w.ids[DOOMED], unknown)], timeout_ms=10_000
    )


def add_partitions(_w: World, version: int) -> transactions.AddPartitionsToTxnRequest:
    topics = [transactions.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in (OPEN, SHUT)]
    if version < 4:
        topics += [
            transactions.AddPartitionsToTxnTopic(name=name, partitions=[0])
            for name in ("missing", "__consumer_offsets")
        ]
        return transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TRANSACTION,
            v3_and_below_producer_id=999_999,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
    one = transactions.AddPartitionsToTxnTransaction(
        transactional_id=TRANSACTION, producer_id=999_999, producer_epoch=0, verify_only=False, topics=topics
    )
    return transactions.AddPartitionsToTxnRequest(transactions=[one])


def txn_offsets(_w: World) -> transactions.TxnOffsetCommitRequest:
    parts = [transactions.TxnOffsetCommitRequestPartition(partition_index=9, committed_offset=1, committed_metadata="")]
    return transactions.TxnOffsetCommitRequest(
        transactional_id=TRANSACTION,
        group_id=GROUP,
        producer_id=999_999,
        producer_epoch=0,
        generation_id=-1,
        member_id="",
        topics=[transactions.TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name in (OPEN, SHUT)],
    )


def markers(_w: World) -> transactions.WriteTxnMarkersRequest:
    topics = [transactions.WritableTxnMarkerTopic(name="missing", partition_indexes=[0])]
    marker = transactions.WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=False, topics=topics)
    return transactions.WriteTxnMarkersRequest(markers=[marker])


def init(transactional: bool, *, two_phase: bool = False) -> Callable[[World], transactions.InitProducerIdRequest]:
    return lambda _w: transactions.InitProducerIdRequest(
        transactional_id="phases" if two_phase else TRANSACTION if transactional else None,
        transaction_timeout_ms=10_000,
        enable_2pc=two_phase,
    )


def quorum(_w: World) -> DescribeQuorumRequest:
    parts = [DescribeQuorumRequestPartition(partition_index=0)]
    return DescribeQuorumRequest(topics=[DescribeQuorumRequestTopic(topic_name="__cluster_metadata", partitions=parts)])


def quota(_w: World) -> AlterClientQuotasRequest:
    entity = [AlteredQuotaEntity(entity_type="user", entity_name="somebody")]
    ops = [QuotaOperation(key="producer_byte_rate", value=1_000.0, remove=False)]
    return AlterClientQuotasRequest(entries=[QuotaAlteration(entity=entity, ops=ops)], validate_only=True)


def records_below(_w: World) -> admin.DeleteRecordsRequest:
    parts = [admin.DeleteRecordsPartition(partition_index=0, offset=0)]
    return admin.DeleteRecordsRequest(
        topics=[admin.DeleteRecordsTopic(name=name, partitions=parts) for name in (OPEN, SHUT, "missing")],
        timeout_ms=5_000,
    )


def reassignment(_w: World) -> AlterPartitionReassignmentsRequest:
    parts = [ReassignablePartition(partition_index=0, replicas=None)]
    return AlterPartitionReassignmentsRequest(
        timeout_ms=10_000, topics=[ReassignableTopic(name=SHUT, partitions=parts)]
    )


def election(_w: World) -> admin.ElectLeadersRequest:
    return admin.ElectLeadersRequest(
        election_type=0,
        topic_partitions=[admin.ElectLeadersTopic(topic=SHUT, partitions=[0])],
        timeout_ms=10_000,
    )


def member_heartbeat(version: int) -> Callable[[World], ConsumerGroupHeartbeatRequest]:
    return lambda _w: ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id="nobody-there", member_epoch=5, subscribed_topic_names=[OPEN, SHUT]
    )


def acls_filter() -> dict[str, Any]:
    """Matches ACLs of a topic that has none."""
    return {
        "resource_type_filter": 2,
        "resource_name_filter": "none",
        "pattern_type_filter": 3,
        "principal_filter": "User:none",
        "host_filter": None,
        "operation": 3,
        "permission_type": 3,
    }


def describe_acls(_w: World) -> DescribeAclsRequest:
    return DescribeAclsRequest(**acls_filter())


def delete_acls(_w: World) -> DeleteAclsRequest:
    return DeleteAclsRequest(filters=[DeleteAclsFilter(**acls_filter())])


def create_acl(_w: World) -> CreateAclsRequest:
    """An ACL that is refused: it has no name."""
    acl = AclCreation(
        resource_type=2, resource_name="", principal="User:none", host="*", operation=3, permission_type=3
    )
    return CreateAclsRequest(creations=[acl])


def token_for_another(_w: World) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name=OWNER, renewers=[], max_lifetime_ms=-1
    )


def own_token(_w: World) -> CreateDelegationTokenRequest:
    """Refused after the permissions: a renewer is a group."""
    renewer = TokenPrincipal(principal_type="Group", principal_name="g")
    return CreateDelegationTokenRequest(renewers=[renewer], max_lifetime_ms=-1)


def renewal(_w: World) -> RenewDelegationTokenRequest:
    return RenewDelegationTokenRequest(hmac=b"unknown", renew_period_ms=-1)


def expiry(_w: World) -> ExpireDelegationTokenRequest:
    return ExpireDelegationTokenRequest(hmac=b"unknown", expiry_time_period_ms=-1)


def tokens(_w: World) -> DescribeDelegationTokenRequest:
    return DescribeDelegationTokenRequest(owners=[TokenPrincipal(principal_type="User", principal_name=OWNER)])


def describe_scram(_w: World) -> DescribeUserScramCredentialsRequest:
    return DescribeUserScramCredentialsRequest(users=[ScramUserName(name="none")])


def delete_scram(_w: World) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name="none", mechanism=1)])
