"""A broker without an authorizer whose controller has one: the controller decides about the broker's clients, not about the broker."""

from __future__ import annotations

import pytest

from barnabas.broker.api.access import CLUSTER_NAME
from barnabas.broker.config.table import AUTHORIZER_CLASS
from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.image.records import AccessControlEntryRecord
from barnabas.errors import ErrorCode
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    UpdateFeaturesRequest,
)
from tests.support.broker.nodes import Nodes
from tests.support.processes.ports import free_ports
from tests.support.waiting import until

LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="node" password="planted-node" user_node="planted-node";'
)


@pytest.mark.parametrize("allowed", [False, True])
async def test_the_permissions_of_the_client_count(nodes: Nodes, allowed: bool) -> None:
    (port,) = free_ports(1)
    quorum = {
        "controller.quorum.voters": f"9@127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": LOGIN,
    }
    authorizer = {"authorizer.class.name": AUTHORIZER_CLASS, "super.users": "User:node"}
    node_9 = {"node.id": "9", "process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{port}"}
    controller = await nodes.start(**quorum, **authorizer, **node_9)
    broker = await nodes.start(**quorum, **{"process.roles": "broker"})
    if allowed:
        acl = AccessControlEntryRecord(
            id=bytes(16),
            resource_type=AclResourceType.CLUSTER,
            resource_name=CLUSTER_NAME,
            pattern_type=PatternType.LITERAL,
            principal="User:ANONYMOUS",
            host="127.0.0.1",
            operation=AclOperation.ALL,
            permission_type=AclPermission.ALLOW,
        )
        assert controller.quorum_controller is not None
        controller.quorum_controller.submit(lambda _view: MetadataDecision(None, [acl]))
        await until(lambda: len(controller.current_image.image.acls) == 1)
    client = await nodes.peer(broker)
    topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    created = await client.call(CreateTopicsRequest(topics=topics, timeout_ms=5_000), 7)
    code = 0 if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [each.error_code for each in created.topics] == [code]
    updated = await client.call(UpdateFeaturesRequest(validate_only=True), 1)
    assert updated.error_code == (0 if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
