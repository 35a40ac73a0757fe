"""Requests of users with different permissions: every API, with no ACL, each one alone, all, one too few, a DENY, patterns, other hosts.

The cases are data: who asks what. `tests/oracle` asks Kafka and writes its answers to tests/golden/security/permissions.json; the tests
without Java compare ours with them. A user has the ACLs of one combination; `users()` names all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.security.access import CLUSTER_NAME
from barnabas.protocol.acls import AclOperation as Op
from barnabas.protocol.acls import AclPermission, PatternType
from barnabas.protocol.acls import AclResourceType as Kind
from barnabas.protocol.messages import admin, groups, transactions
from barnabas.protocol.messages.cluster import UnregisterBrokerRequest
from barnabas.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from barnabas.protocol.messages.metadata import DescribeClusterRequest, DescribeTopicPartitionsRequest, TopicRequest
from barnabas.protocol.messages.quotas import DescribeClientQuotasRequest
from barnabas.protocol.messages.reassignments import ListPartitionReassignmentsRequest
from barnabas.protocol.schema import Message
from tests.support.oracle.permission_requests import (
    DOOMED,
    GROUP,
    MEMBERS,
    OPEN,
    OWNER,
    SHUT,
    TRANSACTION,
    World,
    add_partitions,
    configs,
    coordinators,
    create_acl,
    creation,
    delete_acls,
    delete_scram,
    deletion_by_id,
    deletion_by_name,
    describe_acls,
    describe_scram,
    election,
    epochs,
    expiry,
    fetch,
    increment,
    init,
    list_offsets,
    markers,
    member_heartbeat,
    metadata,
    metadata_by_id,
    offset_commit,
    offset_delete,
    offset_fetch,
    own_token,
    produce,
    quorum,
    quota,
    reassignment,
    records_below,
    renewal,
    replace,
    token_for_another,
    tokens,
    txn_offsets,
)

__all__ = [
    "GOLDEN",
    "HOST",
    "Acl",
    "Case",
    "cases",
    "users",
]

GOLDEN = Path(__file__).parents[2] / "golden" / "security" / "permissions.json"
HOST = "127.0.0.1"
ELSEWHERE = "10.9.9.9"


class Acl(NamedTuple):
    """An ACL of one user."""

    operation: Op
    resource_type: Kind
    name: str = CLUSTER_NAME
    pattern: PatternType = PatternType.LITERAL
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"


class Scenario(NamedTuple):
    """One request and the ACLs that Kafka may ask for."""

    name: str
    version: int
    request: Callable[[World], Message]
    needs: tuple[Acl, ...]


class Case(NamedTuple):
    """One request of one user. `recreates`: the request may delete DOOMED."""

    name: str
    user: str
    version: int
    request: Callable[[World], Message]
    recreates: bool


def topic(operation: Op, name: str = SHUT) -> Acl:
    return Acl(operation, Kind.TOPIC, name)


def cluster(operation: Op) -> Acl:
    return Acl(operation, Kind.CLUSTER)


def group(operation: Op, name: str = GROUP) -> Acl:
    return Acl(operation, Kind.GROUP, name)


def transaction(operation: Op) -> Acl:
    return Acl(operation, Kind.TRANSACTIONAL_ID, TRANSACTION)


def scenarios() -> Iterator[Scenario]:
    """All scenarios, in a fixed order."""
    s = Scenario
    read_both = (topic(Op.READ, OPEN), topic(Op.READ, SHUT))
    described_both = (topic(Op.DESCRIBE, OPEN), topic(Op.DESCRIBE, SHUT))
    write = topic(Op.WRITE)
    own = transaction(Op.WRITE)
    yield s("Produce", 9, produce, (write,))
    yield s(
        "Produce, also to a missing topic", 9, lambda w: produce(w, missing=True), (write, topic(Op.WRITE, "missing"))
    )
    yield s("Produce by id", 13, lambda w: produce(w, by_id=True), (write,))
    yield s("Produce, transactional", 11, lambda w: produce(w, transactional=True), (own, write))
    for version in (4, 11, 13, 18):
        yield s(f"Fetch {version}", version, partial(fetch, version=version), read_both)
    yield s(
        "Fetch of a follower", 12, lambda w: fetch(w, 12, follower=True), (cluster(Op.CLUSTER_ACTION), topic(Op.READ))
    )
    yield s("ListOffsets", 7, list_offsets, (*described_both, topic(Op.DESCRIBE, "missing")))
    yield s("OffsetForLeaderEpoch", 4, epochs, (cluster(Op.CLUSTER_ACTION), topic(Op.DESCRIBE)))
    for version in (1, 8, 12):
        yield s(
            f"Metadata of all {version}",
            version,
            metadata(operations=version == 8),
            (*described_both, cluster(Op.DESCRIBE)),
        )
    yield s(
        "Metadata by name",
        9,
        metadata(OPEN, SHUT, "missing", operations=True),
        (topic(Op.DESCRIBE), topic(Op.READ, "missing"), cluster(Op.ALTER)),
    )
    yield s("Metadata by id", 12, metadata_by_id, (topic(Op.DESCRIBE),))
    yield s(
        "Metadata with creation",
        9,
        metadata("bad name", create=True),
        (topic(Op.DESCRIBE, "bad name"), topic(Op.CREATE, "bad name"), cluster(Op.CREATE)),
    )
    yield s(
        "DescribeTopicPartitions",
        0,
        lambda _w: DescribeTopicPartitionsRequest(topics=[TopicRequest(name=n) for n in (OPEN, SHUT, "missing")]),
        (*described_both, topic(Op.READ, "missing")),
    )
    yield s("DescribeTopicPartitions of all", 0, lambda _w: DescribeTopicPartitionsRequest(), described_both)
    yield s(
        "DescribeCluster",
        1,
        lambda _w: DescribeClusterRequest(include_cluster_authorized_operations=True),
        (cluster(Op.DESCRIBE), cluster(Op.CREATE)),
    )
    for version in (7, 9, 10):
        yield s(
            f"OffsetCommit {version}", version, partial(offset_commit, version=version), (group(Op.READ), *read_both)
        )
    for version in (1, 7, 9, 10):
        yield s(
            f"OffsetFetch {version}",
            version,
            partial(offset_fetch, version=version),
            (group(Op.DESCRIBE), *described_both),
        )
    for version in (7, 9, 10):
        yield s(
            f"OffsetFetch of all {version}",
            version,
            partial(offset_fetch, version=version, everything=True),
            (group(Op.DESCRIBE), *described_both),
        )
    yield s("OffsetDelete", 0, offset_delete(GROUP), (group(Op.DELETE), *read_both))
    yield s("OffsetDelete, unknown group", 0, offset_delete("unknown"), (group(Op.DELETE, "unknown"),))
    for version in (1, 3, 4, 6):
        yield s(f"FindCoordinator of groups {version}", version, coordinators(version, 0), (group(Op.DESCRIBE),))
        yield s(
            f"FindCoordinator of transactions {version}", version, coordinators(version, 1), (transaction(Op.DESCRIBE),)
        )
    protocols = [groups.JoinGroupRequestProtocol(name="range", metadata=b"")]
    for version in (2, 9):
        yield s(
            f"JoinGroup {version}",
            version,
            lambda _w: groups.JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                member_id="nobody",
                protocol_type="consumer",
                protocols=protocols,
            ),
            (group(Op.READ),),
        )
    yield s(
        "SyncGroup",
        5,
        lambda _w: groups.SyncGroupRequest(
            group_id=GROUP, generation_id=1, member_id="nobody", protocol_type="consumer", protocol_name="range"
        ),
        (group(Op.READ),),
    )
    yield s(
        "Heartbeat",
        4,
        lambda _w: groups.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="nobody"),
        (group(Op.READ),),
    )
    yield s(
        "Heartbeat without a group",
        4,
        lambda _w: groups.HeartbeatRequest(group_id="", generation_id=1, member_id="nobody"),
        (group(Op.READ),),
    )
    yield s(
        "LeaveGroup 1", 1, lambda _w: groups.LeaveGroupRequest(group_id=GROUP, member_id="nobody"), (group(Op.READ),)
    )
    yield s(
        "LeaveGroup 5",
        5,
        lambda _w: groups.LeaveGroupRequest(group_id=GROUP, members=[groups.MemberIdentity(member_id="nobody")]),
        (group(Op.READ),),
    )
    for version in (3, 6):
        yield s(
            f"DescribeGroups {version}",
            version,
            lambda _w: groups.DescribeGroupsRequest(groups=[GROUP, "unknown"], include_authorized_operations=True),
            (group(Op.DESCRIBE), group(Op.DESCRIBE, "unknown"), group(Op.DELETE)),
        )
    yield s("ListGroups", 5, lambda _w: groups.ListGroupsRequest(), (cluster(Op.DESCRIBE), group(Op.DESCRIBE)))
    yield s(
        "DeleteGroups",
        2,
        lambda _w: groups.DeleteGroupsRequest(groups_names=["unknown", "unseen"]),
        (group(Op.DELETE, "unknown"),),
    )
    yield s("ConsumerGroupHeartbeat", 1, member_heartbeat(1), (group(Op.READ), *described_both))
    yield s(
        "ConsumerGroupDescribe",
        1,
        lambda _w: ConsumerGroupDescribeRequest(group_ids=[MEMBERS, "unknown"], include_authorized_operations=True),
        (group(Op.DESCRIBE, MEMBERS), topic(Op.DESCRIBE, OPEN), group(Op.DELETE, MEMBERS)),
    )
    for version in (4, 7):
        yield s(
            f"CreateTopics {version}",
            version,
            creation,
            (cluster(Op.CREATE), topic(Op.CREATE, "fresh"), topic(Op.DESCRIBE_CONFIGS, "fresh")),
        )
    yield s(
        "DeleteTopics by name",
        4,
        deletion_by_name,
        (cluster(Op.DELETE), topic(Op.DELETE, DOOMED), topic(Op.DESCRIBE, "missing"), topic(Op.DESCRIBE, DOOMED)),
    )
    yield s("DeleteTopics by id", 6, deletion_by_id, (topic(Op.DELETE, DOOMED), topic(Op.DESCRIBE, DOOMED)))
    yield s("DeleteRecords", 2, records_below, (topic(Op.DELETE), topic(Op.DELETE, "missing")))
    yield s(
        "CreatePartitions",
        3,
        lambda _w: admin.CreatePartitionsRequest(
            topics=[admin.CreatePartitionsTopic(name=n, count=3) for n in (OPEN, SHUT, "missing")],
            timeout_ms=10_000,
            validate_only=True,
        ),
        (topic(Op.ALTER), topic(Op.ALTER, "missing")),
    )
    for kind, name, needed in (
        (2, SHUT, topic(Op.DESCRIBE_CONFIGS)),
        (2, "missing", topic(Op.DESCRIBE_CONFIGS, "missing")),
        (4, "1", cluster(Op.DESCRIBE_CONFIGS)),
        (16, "metrics", cluster(Op.DESCRIBE_CONFIGS)),
        (32, GROUP, group(Op.DESCRIBE_CONFIGS)),
    ):
        yield s(f"DescribeConfigs {kind} {name}", 4, configs(kind, name), (needed,))
    for kind, name, key, value, needed in (
        (2, SHUT, "retention.ms", "1000", topic(Op.ALTER_CONFIGS)),
        (2, "missing", "retention.ms", "1000", topic(Op.ALTER_CONFIGS, "missing")),
        (4, "", "log.retention.ms", "1000", cluster(Op.ALTER_CONFIGS)),
        (16, "metrics", "interval.ms", "1000", cluster(Op.ALTER_CONFIGS)),
        (32, GROUP, "consumer.session.timeout.ms", "50000", group(Op.ALTER_CONFIGS)),
    ):
        yield s(f"IncrementalAlterConfigs {kind} {name}", 1, increment(kind, name, key, value), (needed,))
        if kind != 4:
            yield s(f"AlterConfigs {kind} {name}", 2, replace(kind, name, key, value), (needed,))
    for version in (0, 1):
        yield s(
            f"ListConfigResources {version}",
            version,
            lambda _w: admin.ListConfigResourcesRequest(),
            (cluster(Op.DESCRIBE_CONFIGS), topic(Op.DESCRIBE)),
        )
    for version in (2, 4):
        yield s(
            f"DescribeLogDirs {version}",
            version,
            lambda _w: admin.DescribeLogDirsRequest(topics=[admin.DescribableLogDirTopic(topic=SHUT, partitions=[0])]),
            (cluster(Op.DESCRIBE),),
        )
    for version in (0, 2):
        yield s(f"ElectLeaders {version}", version, election, (cluster(Op.ALTER), topic(Op.ALTER)))
    yield s("AlterPartitionReassignments", 1, reassignment, (cluster(Op.ALTER),))
    yield s(
        "ListPartitionReassignments",
        0,
        lambda _w: ListPartitionReassignmentsRequest(timeout_ms=10_000),
        (cluster(Op.DESCRIBE),),
    )
    yield s(
        "UpdateFeatures",
        1,
        lambda _w: admin.UpdateFeaturesRequest(
            validate_only=True,
            feature_updates=[admin.FeatureUpdateKey(feature="no.such", max_version_level=1, upgrade_type=1)],
        ),
        (cluster(Op.ALTER),),
    )
    yield s("UnregisterBroker", 0, lambda _w: UnregisterBrokerRequest(broker_id=99), (cluster(Op.ALTER),))
    yield s("DescribeQuorum", 2, quorum, (cluster(Op.DESCRIBE), cluster(Op.CLUSTER_ACTION)))
    yield s("InitProducerId", 4, init(False), (cluster(Op.IDEMPOTENT_WRITE), topic(Op.WRITE), topic(Op.READ)))
    yield s("InitProducerId, transactional", 4, init(True), (own, transaction(Op.DESCRIBE)))
    yield s(
        "AddPartitionsToTxn 3",
        3,
        lambda w: add_partitions(w, 3),
        (own, topic(Op.WRITE, OPEN), write, topic(Op.WRITE, "__consumer_offsets")),
    )
    yield s("AddPartitionsToTxn 5", 5, lambda w: add_partitions(w, 5), (cluster(Op.CLUSTER_ACTION), own))
    yield s(
        "AddOffsetsToTxn",
        4,
        lambda _w: transactions.AddOffsetsToTxnRequest(
            transactional_id=TRANSACTION, producer_id=999_999, producer_epoch=0, group_id=GROUP
        ),
        (own, group(Op.READ)),
    )
    yield s(
        "EndTxn",
        4,
        lambda _w: transactions.EndTxnRequest(
            transactional_id=TRANSACTION, producer_id=999_999, producer_epoch=0, committed=True
        ),
        (own,),
    )
    yield s("TxnOffsetCommit", 3, txn_offsets, (own, group(Op.READ), *read_both))
    yield s("WriteTxnMarkers", 1, markers, (cluster(Op.ALTER), cluster(Op.CLUSTER_ACTION)))
    yield s(
        "DescribeTransactions",
        0,
        lambda _w: transactions.DescribeTransactionsRequest(transactional_ids=[TRANSACTION, "unknown"]),
        (transaction(Op.DESCRIBE),),
    )
    yield s(
        "ListTransactions",
        1,
        lambda _w: transactions.ListTransactionsRequest(),
        (transaction(Op.DESCRIBE), cluster(Op.DESCRIBE)),
    )
    yield s(
        "DescribeProducers",
        0,
        lambda _w: transactions.DescribeProducersRequest(
            topics=[
                transactions.DescribeProducersTopic(name=n, partition_indexes=[0])
                for n in (OPEN, SHUT, "missing", "bad name")
            ]
        ),
        (topic(Op.READ), topic(Op.READ, "missing")),
    )
    yield s("DescribeClientQuotas", 1, lambda _w: DescribeClientQuotasRequest(), (cluster(Op.DESCRIBE_CONFIGS),))
    yield s("DescribeAcls", 3, describe_acls, (cluster(Op.DESCRIBE), cluster(Op.ALTER)))
    yield s("CreateAcls", 3, create_acl, (cluster(Op.ALTER), cluster(Op.DESCRIBE)))
    yield s("DeleteAcls", 3, delete_acls, (cluster(Op.ALTER), cluster(Op.DESCRIBE)))
    yield s("DescribeUserScramCredentials", 0, describe_scram, (cluster(Op.DESCRIBE), cluster(Op.ALTER)))
    yield s("AlterUserScramCredentials", 0, delete_scram, (cluster(Op.ALTER), cluster(Op.DESCRIBE)))
    yield s("AlterClientQuotas", 1, quota, (cluster(Op.ALTER_CONFIGS),))
    made = Acl(Op.CREATE_TOKENS, Kind.USER, f"User:{OWNER}")
    yield s("CreateDelegationToken for another owner", 3, token_for_another, (made, cluster(Op.ALTER)))
    yield s("CreateDelegationToken", 3, own_token, (made,))
    yield s("RenewDelegationToken", 2, renewal, (made,))
    yield s("ExpireDelegationToken", 2, expiry, (made,))
    shown = Acl(Op.DESCRIBE_TOKENS, Kind.USER, f"User:{OWNER}")
    yield s("DescribeDelegationToken", 3, tokens, (Acl(Op.DESCRIBE, Kind.DELEGATION_TOKEN, "*"), shown, made))


def _combinations(needs: tuple[Acl, ...]) -> Iterator[tuple[str, tuple[Acl, ...]]]:
    yield "nothing", ()
    if len(needs) > 1:
        for acl in needs:
            yield f"only {_text(acl)}", (acl,)
    yield "everything", needs
    if len(needs) > 2:
        for acl in needs:
            yield f"all but {_text(acl)}", tuple(each for each in needs if each != acl)
    for acl in needs:
        yield f"{_text(acl)} denied", (*needs, acl._replace(permission=AclPermission.DENY))
    yield "all operations", tuple(dict.fromkeys(acl._replace(operation=Op.ALL) for acl in needs))
    yield "from elsewhere", tuple(acl._replace(host=ELSEWHERE) for acl in needs)
    yield "from here", tuple(acl._replace(host=HOST) for acl in needs)
    if any(acl.resource_type != Kind.CLUSTER for acl in needs):
        yield "by prefix", tuple(_prefixed(acl) for acl in needs)
        yield (
            "by wildcard",
            tuple(acl if acl.resource_type == Kind.CLUSTER else acl._replace(name="*") for acl in needs),
        )


def _prefixed(acl: Acl) -> Acl:
    if acl.resource_type == Kind.CLUSTER:
        return acl
    return acl._replace(name=acl.name[:2], pattern=PatternType.PREFIXED)


def _text(acl: Acl) -> str:
    return f"{acl.operation.name} {acl.resource_type.name} {acl.name}"


def _all() -> Iterator[tuple[Scenario, str, tuple[Acl, ...]]]:
    for scenario in scenarios():
        for name, acls in _combinations(scenario.needs):
            yield scenario, name, acls


def users() -> dict[str, tuple[Acl, ...]]:
    """The ACLs of each user."""
    different = dict.fromkeys(acls for _, _, acls in _all())
    return {f"u{number}": acls for number, acls in enumerate(different)}


def cases() -> list[Case]:
    """All cases, in the order in which they are asked."""
    names = {acls: user for user, acls in users().items()}
    return [
        Case(
            f"{scenario.name}: {name}",
            names[acls],
            scenario.version,
            scenario.request,
            scenario.name.startswith("DeleteTopics"),
        )
        for scenario, name, acls in _all()
    ]
