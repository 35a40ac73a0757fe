"""A node with an authorizer: who may change ACLs, and that a change applies to connections that are open and after a restart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.api.principal import USER, Principal
from barnabas.broker.config.authorizer_settings import AuthorizerSettings
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import MetadataDelta, MetadataImage
from barnabas.broker.node.node import Node
from barnabas.broker.node.node_authorizer import node_authorizer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramUserName,
)
from barnabas.storage.disk import MemoryDisk
from tests.support.broker.nodes import Nodes, Peer
from tests.support.oracle.acl_requests import acl, fields, matching, upsertion

AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:admin",
}
ANONYMOUS_READS = acl("orders", principal="User:ANONYMOUS", operation=8)  # DESCRIBE
EVERYTHING = DescribeAclsRequest(**fields(matching()))


async def super_user(nodes: Nodes, node: Node) -> Peer:
    """A connection of a super user, as after a login."""
    before = set(node.server.connections)
    peer = await nodes.peer(node)
    await peer.call(MetadataRequest(topics=[]), 9)
    (connection,) = set(node.server.connections) - before
    connection.authenticated(Principal(USER, "admin"))
    return peer


async def seen(peer: Peer) -> int:
    answer = await peer.call(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 9)
    return int(answer.topics[0].error_code)


async def test_a_change_of_acls_applies_to_open_connections_and_after_a_restart(nodes: Nodes) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk, **AUTHORIZER)
    admin, client = await super_user(nodes, node), await nodes.peer(node)
    await admin.create("orders", 1)
    assert await seen(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    created = await admin.call(CreateAclsRequest(creations=[ANONYMOUS_READS]), 3)
    assert [each.error_code for each in created.results] == [0]
    assert await seen(client) == 0
    denied = acl("ord", principal="User:*", pattern=4, permission=2, operation=2)
    await admin.call(CreateAclsRequest(creations=[denied]), 3)
    assert await seen(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await admin.call(DeleteAclsRequest(filters=[matching("ord")]), 3)
    assert await seen(client) == 0
    await node.stop()
    nodes.nodes.remove(node)
    node = await nodes.start(disk, **AUTHORIZER)
    assert await seen(await nodes.peer(node)) == 0
    described = await (await super_user(nodes, node)).call(EVERYTHING, 3)
    assert [each.resource_name for each in described.resources] == ["orders"]


def fetch(session_id: int, epoch: int) -> FetchRequest:
    """The first request of a session names a topic, later ones none."""
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    topics = [] if epoch else [FetchTopic(topic="orders", partitions=[part])]
    return FetchRequest(session_id=session_id, session_epoch=epoch, max_wait_ms=0, min_bytes=1, topics=topics)


async def test_a_fetch_session_knows_the_acls_and_the_principal_of_its_last_request(nodes: Nodes) -> None:
    node = await nodes.start(**AUTHORIZER)
    admin = await super_user(nodes, node)
    await admin.create("orders", 1)
    await admin.call(CreateAclsRequest(creations=[acl("orders", principal="User:ANONYMOUS", operation=3)]), 3)
    before = set(node.server.connections)
    client = await nodes.peer(node)
    session_id, epoch = (await client.call(fetch(0, 0), 11)).session_id, 0
    (connection,) = set(node.server.connections) - before

    async def code() -> int | None:
        nonlocal epoch
        epoch += 1
        answer = await client.call(fetch(session_id, epoch), 11)
        return answer.responses[0].partitions[0].error_code if answer.responses else None

    assert [await code() for _ in range(2)] == [None, None], "nothing new"
    await admin.call(DeleteAclsRequest(filters=[matching("orders")]), 3)
    assert [await code() for _ in range(2)] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    connection.authenticated(Principal(USER, "admin"))
    assert [await code() for _ in range(3)] == [0, None, None], "a super user"
    connection.authenticated(Principal(USER, "other"))
    assert await code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_only_those_who_may_alter_the_cluster_change_acls_and_users(nodes: Nodes) -> None:
    node = await nodes.start(**AUTHORIZER)
    client = await nodes.peer(node)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    created = await client.call(CreateAclsRequest(creations=[ANONYMOUS_READS]), 3)
    deleted = await client.call(DeleteAclsRequest(filters=[matching()]), 3)
    described = await client.call(EVERYTHING, 3)
    altered = await client.call(AlterUserScramCredentialsRequest(upsertions=[upsertion()]), 0)
    users = await client.call(DescribeUserScramCredentialsRequest(users=[ScramUserName(name="u")]), 0)
    assert created.results[0].error_code == deleted.filter_results[0].error_code == described.error_code == refused
    assert altered.results[0].error_code == users.error_code == refused
    assert not node.image.acls
    assert not node.image.scram_credentials


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_node_decides_once_its_image_holds_its_own_registration(role: str) -> None:
    """A standby controller is never active, and answers requests, too."""
    current = CurrentImage()
    process = SimpleNamespace(incarnation_id=b"now")
    settings = AuthorizerSettings(frozenset({"User:admin"}), allow_if_no_acl=True)
    access = node_authorizer(settings, current, process, None).access(Principal(USER, "alice"), "127.0.0.1")

    def publish(incarnation_id: bytes) -> None:
        found = {1: SimpleNamespace(incarnation_id=incarnation_id)}
        image = MetadataImage(**{f"{role}s": cast("Any", found)})
        current.publish(image, MetadataDelta())

    for former in (None, b"former"):
        if former is not None:
            publish(former)
        with pytest.raises(BrokerError, match="not loaded"):
            access.allows(AclOperation.DESCRIBE, AclResourceType.CLUSTER)
    publish(b"now")
    assert access.allows(AclOperation.DESCRIBE, AclResourceType.CLUSTER)
