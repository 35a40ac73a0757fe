"""Requests of users with different permissions: every API, with no ACL, each one alone, all, one too few, a DENY, patterns, other hosts.

The cases are data: who asks what. `tests/oracle` asks Kafka and writes its answers to tests/golden/security/permissions.json; the tests
without Java compare ours with them. A user has the ACLs of one combination; `users()` names all of them. The requests change little, so
that one world serves all cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.broker.api.access import CLUSTER_NAME
from barnabas.protocol.acls import AclOperation as Op
from barnabas.protocol.acls import AclPermission, PatternType
from barnabas.protocol.acls import AclResourceType as Kind
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.requests import Fields, request_of

GOLDEN = Path(__file__).parents[2] / "golden" / "security" / "permissions.json"
HOST = "127.0.0.1"
ELSEWHERE = "10.9.9.9"
OPEN, SHUT, DOOMED = "open", "shut", "doomed"
TOPICS = (OPEN, SHUT, DOOMED)
OWNER = "owner"  # of delegation tokens
GROUP, MEMBERS, TRANSACTION = "offsets-group", "members-group", "transfer"
UNKNOWN_ID = bytes([9] * 16)


class World(NamedTuple):
    """What differs between two clusters: ids of topics."""

    ids: dict[str, bytes]


class Acl(NamedTuple):
    """An ACL of one user."""

    operation: Op
    resource_type: Kind
    name: str = CLUSTER_NAME
    pattern: PatternType = PatternType.LITERAL
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"


class Scenario(NamedTuple):
    """One request and the ACLs that Kafka may ask for. The name begins with the API; `fields` may need the ids of topics."""

    name: str
    version: int
    fields: Fields | Callable[[World], Fields]
    needs: tuple[Acl, ...]

    def request(self, world: World) -> Any:
        fields = self.fields(world) if callable(self.fields) else self.fields
        return request_of(re.split(r"\W", self.name)[0], **fields)


class Case(NamedTuple):
    """One request of one user. `recreates`: the request may delete DOOMED."""

    name: str
    user: str
    version: int
    request: Callable[[World], Any]
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
    yield from _records()
    yield from _metadata()
    yield from _offsets()
    yield from _groups()
    yield from _topics()
    yield from _configs()
    yield from _partitions()
    yield from _transactions()
    yield from _security()


READ_BOTH = (topic(Op.READ, OPEN), topic(Op.READ, SHUT))
DESCRIBED_BOTH = (topic(Op.DESCRIBE, OPEN), topic(Op.DESCRIBE, SHUT))
WRITE = topic(Op.WRITE)
OWN = transaction(Op.WRITE)


def _named(names: tuple[str, ...], **fields: Any) -> list[Fields]:
    return [{"name": name, **fields} for name in names]


def _data(w: World, *names: str, by_id: bool = False, **producer: Any) -> Fields:
    records = build_batch([NewRecord(None, b"x", 1_700_000_000_000)], **producer)
    topics = [
        {
            "name": n,
            "topic_id": w.ids.get(n, bytes(16)) if by_id else bytes(16),
            "partition_data": [{"records": records}],
        }
        for n in names
    ]
    return {"acks": -1, "timeout_ms": 5_000, "topic_data": topics}


def _transactional_data(w: World) -> Fields:
    data = _data(w, SHUT, producer_id=999_999, producer_epoch=0, base_sequence=0, transactional=True)
    return {"transactional_id": TRANSACTION, **data}


def _fetch(w: World, *names: str, **fields: Any) -> Fields:
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000, "log_start_offset": 0}]
    topics = [{"topic": name, "topic_id": w.ids.get(name, bytes(16)), "partitions": parts} for name in names]
    return {"max_wait_ms": 0, "max_bytes": 1_000, "topics": topics, **fields}


def _records() -> Iterator[Scenario]:
    s = Scenario
    yield s("Produce", 9, lambda w: _data(w, SHUT), (WRITE,))
    missing = topic(Op.WRITE, "missing")
    yield s("Produce, also to a missing topic", 9, lambda w: _data(w, SHUT, "missing"), (WRITE, missing))
    yield s("Produce by id", 13, lambda w: _data(w, SHUT, by_id=True), (WRITE,))
    yield s("Produce, transactional", 11, _transactional_data, (OWN, WRITE))
    for version in (4, 11):
        yield s(f"Fetch {version}", version, lambda w: _fetch(w, OPEN, SHUT, "missing"), READ_BOTH)
    for version in (13, 18):
        yield s(f"Fetch {version}", version, lambda w: _fetch(w, OPEN, SHUT), READ_BOTH)
    follower = (cluster(Op.CLUSTER_ACTION), topic(Op.READ))
    yield s("Fetch of a follower", 12, lambda w: _fetch(w, OPEN, SHUT, "missing", replica_id=77), follower)
    latest = _named((OPEN, SHUT, "missing"), partitions=[{"partition_index": 0, "timestamp": -1}])
    needs: tuple[Acl, ...] = (*DESCRIBED_BOTH, topic(Op.DESCRIBE, "missing"))
    yield s("ListOffsets", 7, {"replica_id": -1, "topics": latest}, needs)
    epochs = [{"topic": n, "partitions": [{"partition": 0, "leader_epoch": 0}]} for n in (OPEN, SHUT)]
    needs = (cluster(Op.CLUSTER_ACTION), topic(Op.DESCRIBE))
    yield s("OffsetForLeaderEpoch", 4, {"replica_id": -1, "topics": epochs}, needs)


def _metadata() -> Iterator[Scenario]:
    s = Scenario

    def of(*names: str, create: bool = False, operations: bool = False) -> Fields:
        return {
            "topics": _named(names) if names else None,
            "allow_auto_topic_creation": create,
            "include_cluster_authorized_operations": operations,
            "include_topic_authorized_operations": operations,
        }

    def by_id(w: World) -> Fields:
        topics = [{"topic_id": each, "name": None} for each in (w.ids[SHUT], UNKNOWN_ID)]
        return {"topics": topics, "allow_auto_topic_creation": False}

    for version in (1, 8, 12):
        needs: tuple[Acl, ...] = (*DESCRIBED_BOTH, cluster(Op.DESCRIBE))
        yield s(f"Metadata of all {version}", version, of(operations=version == 8), needs)
    needs = (topic(Op.DESCRIBE), topic(Op.READ, "missing"), cluster(Op.ALTER))
    yield s("Metadata by name", 9, of(OPEN, SHUT, "missing", operations=True), needs)
    yield s("Metadata by id", 12, by_id, (topic(Op.DESCRIBE),))
    needs = (topic(Op.DESCRIBE, "bad name"), topic(Op.CREATE, "bad name"), cluster(Op.CREATE))
    yield s("Metadata with creation", 9, of("bad name", create=True), needs)
    needs = (*DESCRIBED_BOTH, topic(Op.READ, "missing"))
    yield s("DescribeTopicPartitions", 0, {"topics": _named((OPEN, SHUT, "missing"))}, needs)
    yield s("DescribeTopicPartitions of all", 0, {}, DESCRIBED_BOTH)
    needs = (cluster(Op.DESCRIBE), cluster(Op.CREATE))
    yield s("DescribeCluster", 1, {"include_cluster_authorized_operations": True}, needs)


def _offsets() -> Iterator[Scenario]:
    s = Scenario
    parts = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    old = _named((OPEN, SHUT), partition_indexes=[0])

    def commit(w: World) -> Fields:
        return {
            "group_id": GROUP,
            "topics": [{"name": n, "topic_id": w.ids[n], "partitions": parts} for n in (OPEN, SHUT)],
        }

    def fetch(w: World) -> Fields:
        topics = [{"name": n, "topic_id": w.ids[n], "partition_indexes": [0]} for n in (OPEN, SHUT)]
        return {"groups": [{"group_id": GROUP, "topics": topics}]}

    named = {"group_id": GROUP, "topics": _named((OPEN, SHUT, "missing"), partitions=parts)}
    for version in (7, 9, 10):
        yield s(f"OffsetCommit {version}", version, commit if version == 10 else named, (group(Op.READ), *READ_BOTH))
    needs: tuple[Acl, ...] = (group(Op.DESCRIBE), *DESCRIBED_BOTH)
    for version in (1, 7):
        yield s(f"OffsetFetch {version}", version, {"group_id": GROUP, "topics": old}, needs)
    yield s("OffsetFetch 9", 9, {"groups": [{"group_id": GROUP, "topics": old}]}, needs)
    yield s("OffsetFetch 10", 10, fetch, needs)
    yield s("OffsetFetch of all 7", 7, {"group_id": GROUP, "topics": None}, needs)
    for version in (9, 10):
        every = {"groups": [{"group_id": GROUP, "topics": None}]}
        yield s(f"OffsetFetch of all {version}", version, every, needs)
    topics = _named((OPEN, SHUT), partitions=[{"partition_index": 7}])
    yield s("OffsetDelete", 0, {"group_id": GROUP, "topics": topics}, (group(Op.DELETE), *READ_BOTH))
    unknown = {"group_id": "unknown", "topics": topics}
    yield s("OffsetDelete, unknown group", 0, unknown, (group(Op.DELETE, "unknown"),))


def _groups() -> Iterator[Scenario]:
    s = Scenario
    for version in (1, 3, 4, 6):
        for kind, kinds, key, need in (
            (0, "groups", GROUP, group(Op.DESCRIBE)),
            (1, "transactions", TRANSACTION, transaction(Op.DESCRIBE)),
        ):
            keys = {"coordinator_keys": [key, "another"]} if version >= 4 else {"key": key}
            yield s(f"FindCoordinator of {kinds} {version}", version, {"key_type": kind, **keys}, (need,))
    read = (group(Op.READ),)
    nobody: Fields = {"group_id": GROUP, "member_id": "nobody", "protocol_type": "consumer"}
    for version in (2, 9):
        protocols = [{"name": "range", "metadata": b""}]
        join = {**nobody, "session_timeout_ms": 10_000, "protocols": protocols}
        yield s(f"JoinGroup {version}", version, join, read)
    yield s("SyncGroup", 5, {**nobody, "generation_id": 1, "protocol_name": "range"}, read)
    yield s("Heartbeat", 4, {"group_id": GROUP, "generation_id": 1, "member_id": "nobody"}, read)
    yield s("Heartbeat without a group", 4, {"group_id": "", "generation_id": 1, "member_id": "nobody"}, read)
    yield s("LeaveGroup 1", 1, {"group_id": GROUP, "member_id": "nobody"}, read)
    yield s("LeaveGroup 5", 5, {"group_id": GROUP, "members": [{"member_id": "nobody"}]}, read)
    for version in (3, 6):
        described = {"groups": [GROUP, "unknown"], "include_authorized_operations": True}
        needs: tuple[Acl, ...] = (group(Op.DESCRIBE), group(Op.DESCRIBE, "unknown"), group(Op.DELETE))
        yield s(f"DescribeGroups {version}", version, described, needs)
    yield s("ListGroups", 5, {}, (cluster(Op.DESCRIBE), group(Op.DESCRIBE)))
    yield s("DeleteGroups", 2, {"groups_names": ["unknown", "unseen"]}, (group(Op.DELETE, "unknown"),))
    beat = {"group_id": GROUP, "member_id": "nobody-there", "member_epoch": 5, "subscribed_topic_names": [OPEN, SHUT]}
    yield s("ConsumerGroupHeartbeat", 1, beat, (group(Op.READ), *DESCRIBED_BOTH))
    described = {"group_ids": [MEMBERS, "unknown"], "include_authorized_operations": True}
    needs = (group(Op.DESCRIBE, MEMBERS), topic(Op.DESCRIBE, OPEN), group(Op.DELETE, MEMBERS))
    yield s("ConsumerGroupDescribe", 1, described, needs)


def _topics() -> Iterator[Scenario]:
    s = Scenario
    for version in (4, 7):
        topics = _named(("fresh", SHUT, "twice", "twice"), num_partitions=1, replication_factor=1)
        created = {"topics": topics, "timeout_ms": 10_000, "validate_only": True}
        needs: tuple[Acl, ...] = (cluster(Op.CREATE), topic(Op.CREATE, "fresh"), topic(Op.DESCRIBE_CONFIGS, "fresh"))
        yield s(f"CreateTopics {version}", version, created, needs)
    deleted = {"topic_names": [DOOMED, "missing"], "timeout_ms": 10_000}
    needs = (cluster(Op.DELETE), topic(Op.DELETE, DOOMED), topic(Op.DESCRIBE, "missing"), topic(Op.DESCRIBE, DOOMED))
    yield s("DeleteTopics by name", 4, deleted, needs)

    def by_id(w: World) -> Fields:
        return {"topics": [{"topic_id": each} for each in (w.ids[DOOMED], UNKNOWN_ID)], "timeout_ms": 10_000}

    yield s("DeleteTopics by id", 6, by_id, (topic(Op.DELETE, DOOMED), topic(Op.DESCRIBE, DOOMED)))
    below = _named((OPEN, SHUT, "missing"), partitions=[{"partition_index": 0, "offset": 0}])
    needs = (topic(Op.DELETE), topic(Op.DELETE, "missing"))
    yield s("DeleteRecords", 2, {"topics": below, "timeout_ms": 5_000}, needs)
    wider = {"topics": _named((OPEN, SHUT, "missing"), count=3), "timeout_ms": 10_000, "validate_only": True}
    yield s("CreatePartitions", 3, wider, (topic(Op.ALTER), topic(Op.ALTER, "missing")))


def _configs() -> Iterator[Scenario]:
    s = Scenario
    for kind, name, needed in (
        (2, SHUT, topic(Op.DESCRIBE_CONFIGS)),
        (2, "missing", topic(Op.DESCRIBE_CONFIGS, "missing")),
        (4, "1", cluster(Op.DESCRIBE_CONFIGS)),
        (16, "metrics", cluster(Op.DESCRIBE_CONFIGS)),
        (32, GROUP, group(Op.DESCRIBE_CONFIGS)),
    ):
        keys = ["retention.ms", "log.retention.ms"]
        resource: Fields = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        yield s(f"DescribeConfigs {kind} {name}", 4, {"resources": [resource]}, (needed,))
    for kind, name, key, value, needed in (
        (2, SHUT, "retention.ms", "1000", topic(Op.ALTER_CONFIGS)),
        (2, "missing", "retention.ms", "1000", topic(Op.ALTER_CONFIGS, "missing")),
        (4, "", "log.retention.ms", "1000", cluster(Op.ALTER_CONFIGS)),
        (16, "metrics", "interval.ms", "1000", cluster(Op.ALTER_CONFIGS)),
        (32, GROUP, "consumer.session.timeout.ms", "50000", group(Op.ALTER_CONFIGS)),
    ):
        change = {"name": key, "value": value}
        resource = {"resource_type": kind, "resource_name": name, "configs": [{**change, "config_operation": 0}]}
        altered = {"resources": [resource], "validate_only": True}
        yield s(f"IncrementalAlterConfigs {kind} {name}", 1, altered, (needed,))
        if kind != 4:
            replaced = {"resources": [{**resource, "configs": [change]}], "validate_only": True}
            yield s(f"AlterConfigs {kind} {name}", 2, replaced, (needed,))
    for version in (0, 1):
        needs: tuple[Acl, ...] = (cluster(Op.DESCRIBE_CONFIGS), topic(Op.DESCRIBE))
        yield s(f"ListConfigResources {version}", version, {}, needs)


def _partitions() -> Iterator[Scenario]:
    s = Scenario
    for version in (2, 4):
        dirs = {"topics": [{"topic": SHUT, "partitions": [0]}]}
        yield s(f"DescribeLogDirs {version}", version, dirs, (cluster(Op.DESCRIBE),))
    for version in (0, 2):
        partitions = [{"topic": SHUT, "partitions": [0]}]
        elected = {"election_type": 0, "topic_partitions": partitions, "timeout_ms": 10_000}
        yield s(f"ElectLeaders {version}", version, elected, (cluster(Op.ALTER), topic(Op.ALTER)))
    moved = _named((SHUT,), partitions=[{"partition_index": 0, "replicas": None}])
    yield s("AlterPartitionReassignments", 1, {"timeout_ms": 10_000, "topics": moved}, (cluster(Op.ALTER),))
    yield s("ListPartitionReassignments", 0, {"timeout_ms": 10_000}, (cluster(Op.DESCRIBE),))
    updates = [{"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}]
    yield s("UpdateFeatures", 1, {"validate_only": True, "feature_updates": updates}, (cluster(Op.ALTER),))
    yield s("UnregisterBroker", 0, {"broker_id": 99}, (cluster(Op.ALTER),))
    quorum = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    yield s("DescribeQuorum", 2, quorum, (cluster(Op.DESCRIBE), cluster(Op.CLUSTER_ACTION)))


def _transactions() -> Iterator[Scenario]:
    s = Scenario
    plain: Fields = {"transactional_id": None, "transaction_timeout_ms": 10_000, "enable_2pc": False}
    yield s("InitProducerId", 4, plain, (cluster(Op.IDEMPOTENT_WRITE), topic(Op.WRITE), topic(Op.READ)))
    named = {**plain, "transactional_id": TRANSACTION}
    yield s("InitProducerId, transactional", 4, named, (OWN, transaction(Op.DESCRIBE)))
    identity: Fields = {"transactional_id": TRANSACTION, "producer_id": 999_999, "producer_epoch": 0}
    old = {f"v3_and_below_{name}": value for name, value in identity.items()}
    old["v3_and_below_topics"] = _named((OPEN, SHUT, "missing", "__consumer_offsets"), partitions=[0])
    needs: tuple[Acl, ...] = (OWN, topic(Op.WRITE, OPEN), WRITE, topic(Op.WRITE, "__consumer_offsets"))
    yield s("AddPartitionsToTxn 3", 3, old, needs)
    one = {**identity, "verify_only": False, "topics": _named((OPEN, SHUT), partitions=[0])}
    yield s("AddPartitionsToTxn 5", 5, {"transactions": [one]}, (cluster(Op.CLUSTER_ACTION), OWN))
    yield s("AddOffsetsToTxn", 4, {**identity, "group_id": GROUP}, (OWN, group(Op.READ)))
    yield s("EndTxn", 4, {**identity, "committed": True}, (OWN,))
    parts = [{"partition_index": 9, "committed_offset": 1, "committed_metadata": ""}]
    topics = _named((OPEN, SHUT), partitions=parts)
    commit = {**identity, "group_id": GROUP, "generation_id": -1, "member_id": "", "topics": topics}
    yield s("TxnOffsetCommit", 3, commit, (OWN, group(Op.READ), *READ_BOTH))
    marker = {"producer_id": 1, "producer_epoch": 0, "topics": _named(("missing",), partition_indexes=[0])}
    yield s("WriteTxnMarkers", 1, {"markers": [marker]}, (cluster(Op.ALTER), cluster(Op.CLUSTER_ACTION)))
    described = {"transactional_ids": [TRANSACTION, "unknown"]}
    yield s("DescribeTransactions", 0, described, (transaction(Op.DESCRIBE),))
    yield s("ListTransactions", 1, {}, (transaction(Op.DESCRIBE), cluster(Op.DESCRIBE)))
    producers = {"topics": _named((OPEN, SHUT, "missing", "bad name"), partition_indexes=[0])}
    yield s("DescribeProducers", 0, producers, (topic(Op.READ), topic(Op.READ, "missing")))


def _security() -> Iterator[Scenario]:
    s = Scenario
    yield s("DescribeClientQuotas", 1, {}, (cluster(Op.DESCRIBE_CONFIGS),))
    see, change = (cluster(Op.DESCRIBE), cluster(Op.ALTER)), (cluster(Op.ALTER), cluster(Op.DESCRIBE))
    # ACLs of a topic that has none
    acls: Fields = {
        "resource_type_filter": 2,
        "resource_name_filter": "none",
        "pattern_type_filter": 3,
        "principal_filter": "User:none",
        "host_filter": None,
        "operation": 3,
        "permission_type": 3,
    }
    yield s("DescribeAcls", 3, acls, see)
    # refused: it has no name
    nameless: Fields = {"resource_type": 2, "resource_name": "", "principal": "User:none", "host": "*"}
    yield s("CreateAcls", 3, {"creations": [{**nameless, "operation": 3, "permission_type": 3}]}, change)
    yield s("DeleteAcls", 3, {"filters": [acls]}, change)
    yield s("DescribeUserScramCredentials", 0, {"users": _named(("none",))}, see)
    yield s("AlterUserScramCredentials", 0, {"deletions": _named(("none",), mechanism=1)}, change)
    entity = [{"entity_type": "user", "entity_name": "somebody"}]
    quota = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1_000.0, "remove": False}]}
    yield s("AlterClientQuotas", 1, {"entries": [quota], "validate_only": True}, (cluster(Op.ALTER_CONFIGS),))
    made = Acl(Op.CREATE_TOKENS, Kind.USER, f"User:{OWNER}")
    owner: Fields = {"owner_principal_type": "User", "owner_principal_name": OWNER, "max_lifetime_ms": -1}
    yield s("CreateDelegationToken for another owner", 3, owner, (made, cluster(Op.ALTER)))
    # refused after the permissions: a renewer is a group
    own = {"renewers": [{"principal_type": "Group", "principal_name": "g"}], "max_lifetime_ms": -1}
    yield s("CreateDelegationToken", 3, own, (made,))
    yield s("RenewDelegationToken", 2, {"hmac": b"unknown", "renew_period_ms": -1}, (made,))
    yield s("ExpireDelegationToken", 2, {"hmac": b"unknown", "expiry_time_period_ms": -1}, (made,))
    shown = Acl(Op.DESCRIBE_TOKENS, Kind.USER, f"User:{OWNER}")
    owners = {"owners": [{"principal_type": "User", "principal_name": OWNER}]}
    yield s("DescribeDelegationToken", 3, owners, (Acl(Op.DESCRIBE, Kind.DELEGATION_TOKEN, "*"), shown, made))


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
