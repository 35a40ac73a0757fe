"""What administrators ask by the bundled client: groups, features, elections, moves, directories, producers. Against both brokers."""

from __future__ import annotations

import contextlib
import time
from typing import cast

import pytest

from barnabas.client import Admin, Consumer, KafkaError, NewTopic, OffsetAndMetadata, Producer, TopicPartition
from barnabas.client.admin import AclBinding, AclBindingFilter, AclOperation, AclResourceType, ClientQuotas
from barnabas.client.admin.types import ScramMechanism
from barnabas.client.errors import IllegalState, RequestTimedOut
from barnabas.errors import ErrorCode
from tests.support.clients.bundled import known_topic, make_topic, poll_until

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]


async def test_a_groups_offsets_are_moved_and_forgotten(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(6):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
    await admin.alter_group_offsets(name, {zero: 1, one: OffsetAndMetadata(3, "done")})
    assert await admin.list_group_offsets(name) == {zero: OffsetAndMetadata(1), one: OffsetAndMetadata(3, "done")}
    lags = await admin.group_lag(name)
    assert [(tp, lag.committed, lag.end, lag.lag) for tp, lag in lags.items()] == [(zero, 1, 3, 2), (one, 3, 3, 0)]
    await admin.delete_group_offsets(name, [zero])
    assert list(await admin.list_group_offsets(name)) == [one]
    async with Consumer(topic, bootstrap_servers=bootstrap, group_id=name) as consumer:
        await poll_until([consumer], lambda: bool(consumer.assignment()))
        described = await admin.describe_group(name)
        assert (described.state, described.type, described.protocol_type) == ("Stable", "classic", "consumer")
        assert set(described.members[0].assignment) == {zero, one}
        with pytest.raises(KafkaError):  # a group with members commits by itself
            await admin.alter_group_offsets(name, {zero: 0})
        with pytest.raises(KafkaError) as refused:
            await admin.delete_group_offsets(name, [one])
        assert refused.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    await admin.delete_group(name)


async def test_features_are_validated(admin: Admin) -> None:
    await admin.update_features({"transaction.version": 2}, validate_only=True)
    with pytest.raises(KafkaError):
        await admin.update_features({"transaction.version": 99}, validate_only=True)
    with pytest.raises(KafkaError):
        await admin.update_features({"transaction.version": 1}, validate_only=True)
    await admin.update_features({"transaction.version": 1}, downgrade="safe", validate_only=True)
    assert (await admin.features())["transaction.version"] == 2


async def test_elections_that_are_not_needed(admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    outcome = await admin.elect_leaders([TopicPartition(topic, 0), TopicPartition(f"{topic}-none", 0)])
    assert outcome == {
        TopicPartition(topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
        TopicPartition(f"{topic}-none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_moves_that_cannot_be(admin: Admin, name: str) -> None:
    tp = TopicPartition(await make_topic(admin, name), 0)
    assert await admin.list_partition_reassignments() == {}
    for targets, why in (
        ({tp: [4711]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({tp: None}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ({TopicPartition(name, 7): [1]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        with pytest.raises(KafkaError) as refused:
            await admin.alter_partition_reassignments(targets)
        assert (refused.value.code, refused.value.topic) == (why, name)
    assert refused.value.partition == 7


async def test_directories_and_what_lies_in_them(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"x" * 1000)
    ((directory,),) = (await admin.describe_log_dirs()).values()
    assert directory.error is ErrorCode.NONE
    assert directory.path.startswith("/")
    assert directory.usable_bytes <= directory.total_bytes
    replica = directory.replicas[TopicPartition(topic, 0)]
    assert 1000 < replica.size_bytes < 1200
    assert replica.offset_lag == 0


async def test_producers_of_a_partition(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    tp = TopicPartition(topic, 0)
    assert await admin.describe_producers(tp) == []
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"1", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"2", partition=0)
        (found,) = await admin.describe_producers(tp)
        assert (found.transaction_start_offset, found.last_sequence) == (2, 0)
        assert found.producer_id == (await admin.describe_transaction(name)).producer_id
        await producer.abort_transaction()
    for timeout_ms in (300, 30_000):  # a busy machine does not answer at once
        with pytest.raises(RequestTimedOut) as refused:
            await admin.describe_producers(TopicPartition(f"{topic}-none", 0), timeout_ms=timeout_ms)
        if refused.value.code is not None:
            break
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_transaction_that_hangs_is_ended(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    tp = TopicPartition(topic, 0)
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        async with producer.transaction():  # the next one has a higher epoch
            await producer.send_and_wait(topic, b"1", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"2", partition=0)
        (found,) = await admin.describe_producers(tp)
        fenced = found._replace(producer_epoch=found.producer_epoch - 1)
        with pytest.raises(KafkaError) as refused:
            await admin.abort_transaction(tp, fenced)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        await admin.abort_transaction(tp, found)
        (found,) = await admin.describe_producers(tp)
        assert found.transaction_start_offset == -1
        await producer.abort_transaction()


async def test_members_are_removed(bootstrap: str, admin: Admin, name: str) -> None:
    await make_topic(admin, name)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, group_instance_id="static") as consumer:
        await poll_until([consumer], lambda: bool(consumer.assignment()))
    assert [m.group_instance_id for m in (await admin.describe_group(name)).members] == ["static"], "it has not left"
    with pytest.raises(KafkaError, match="'nobody' is not a member of group") as refused:
        await admin.remove_group_members(name, member_ids=["nobody"], instance_ids=["static"])
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await admin.describe_group(name)).members == ()
    await admin.delete_group(name)


async def test_replicas_where_they_are_wanted(admin: Admin, name: str) -> None:
    (node_id,) = (broker.node_id for broker in (await admin.describe_cluster())[2])
    await admin.create_topics([NewTopic(name, replica_assignments={0: [node_id], 1: [node_id]})])
    topic = await known_topic(admin, name)
    assert [partition.replicas for partition in topic.partitions] == [(node_id,)] * 2
    for assignments, why in (
        ({0: [4711]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({1: [node_id]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ):
        with pytest.raises(KafkaError) as refused:
            await admin.create_topics([NewTopic(f"{name}-no", replica_assignments=assignments)])
        assert refused.value.code is why
    with pytest.raises(KafkaError) as refused:
        await admin.create_topics([NewTopic(f"{name}-no", 2, replica_assignments={0: [node_id]})])
    assert refused.value.code is ErrorCode.INVALID_REQUEST


async def test_a_broker_that_is_not_there_cannot_be_forgotten(admin: Admin) -> None:
    with pytest.raises(KafkaError) as refused:
        await admin.unregister_broker(4711)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_quotas_of_clients(admin: Admin, name: str) -> None:
    await admin.alter_client_quotas({"user": name, "client-id": None}, {"producer_byte_rate": 1e9})
    await admin.alter_client_quotas({"user": name}, {"consumer_byte_rate": 1e9, "request_percentage": 99.5})
    await admin.alter_client_quotas({"user": name}, {"request_percentage": None})
    both, user = ("client-id", None), ("user", name)
    expected = [((both, user), {"producer_byte_rate": 1e9}), ((user,), {"consumer_byte_rate": 1e9})]
    deadline = time.monotonic() + 60  # Kafka answers a change before its broker has replayed it
    found: list[ClientQuotas] = []
    while found != expected and time.monotonic() < deadline:
        found = await admin.describe_client_quotas({"user": name})
    assert found == expected
    assert len(await admin.describe_client_quotas({"user": name}, strict=True)) == 1
    assert ((both, user), {"producer_byte_rate": 1e9}) in await admin.describe_client_quotas({"client-id": ...})
    assert await admin.describe_client_quotas({"client-id": None, "user": f"{name}-none"}) == []
    with pytest.raises(KafkaError, match="Quota producer_byte_rate must be greater than 0"):
        await admin.alter_client_quotas({"user": name}, {"producer_byte_rate": 0}, validate_only=True)
    with pytest.raises(KafkaError, match="group"):
        await admin.describe_client_quotas({"group": name})  # type: ignore[dict-item]
    await admin.alter_client_quotas({"user": name, "client-id": None}, {"producer_byte_rate": None})
    await admin.alter_client_quotas({"user": name}, {"consumer_byte_rate": None})


async def test_acls_need_an_authorizer(admin: Admin) -> None:
    acl = AclBinding(AclResourceType.TOPIC, "t", "User:alice", AclOperation.READ)
    for call in (admin.create_acls([acl]), admin.describe_acls(), admin.delete_acls([AclBindingFilter()])):
        with pytest.raises(KafkaError, match="No Authorizer is configured") as refused:
            await call
        assert refused.value.code is ErrorCode.SECURITY_DISABLED


async def test_users_have_scram_credentials(admin: Admin, name: str) -> None:
    await admin.set_scram_password(name, "secret", mechanism="SCRAM-SHA-256", iterations=5_000)
    await admin.set_scram_password(name, "other", mechanism="SCRAM-SHA-512")
    await admin.set_scram_password(name, "changed", mechanism="SCRAM-SHA-512", iterations=4_097)
    expected = {name: {"SCRAM-SHA-256": 5_000, "SCRAM-SHA-512": 4_097}}
    deadline = time.monotonic() + 60  # Kafka answers a change before its broker has replayed it
    found: dict[str, dict[str, int]] = {}
    while found != expected and time.monotonic() < deadline:
        with contextlib.suppress(KafkaError):
            found = await admin.describe_scram_users([name])
    assert found == expected
    assert name in await admin.describe_scram_users()
    with pytest.raises(KafkaError, match="Too few iterations") as refused:
        await admin.set_scram_password(name, "secret", iterations=10)
    assert refused.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
    with pytest.raises(IllegalState, match="mechanism 'PLAIN' is not one of"):
        await admin.delete_scram_credential(name, "PLAIN")  # type: ignore[arg-type]
    with pytest.raises(IllegalState, match="the password is empty"):
        await admin.set_scram_password(name, "")
    for mechanism in found[name]:
        await admin.delete_scram_credential(name, cast("ScramMechanism", mechanism))
    with pytest.raises(KafkaError) as refused:
        await admin.delete_scram_credential(name, "SCRAM-SHA-512")
    assert refused.value.code is ErrorCode.RESOURCE_NOT_FOUND
