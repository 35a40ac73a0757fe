"""Envelope on the controller listener of a node with an authorizer: whose permissions count, and what is refused before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from barnabas.broker.api.access import CLUSTER_NAME, Access
from barnabas.broker.api.principal import ANONYMOUS, Principal
from barnabas.broker.api.router import Router
from barnabas.broker.authorization.envelopes import open_answer, seal
from barnabas.broker.config.broker_config import Endpoint
from barnabas.broker.config.table import AUTHORIZER_CLASS
from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.front.server import Server
from barnabas.broker.image.records import AccessControlEntryRecord
from barnabas.broker.node.node import Node
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.protocol.messages.acls import DescribeAclsRequest
from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.delegation_tokens import CreateDelegationTokenRequest
from barnabas.protocol.messages.envelope import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from barnabas.protocol.messages.fetch import FetchRequest, ReplicaState
from barnabas.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from barnabas.protocol.messages.quorum import DescribeQuorumRequest
from barnabas.protocol.registry import API, Api
from barnabas.protocol.schema import encode, encode_versioned
from barnabas.runtime.network import AsyncioNetwork
from barnabas.work import finished
from tests.support.broker.nodes import Nodes, Peer
from tests.support.broker.some_access import SomeAccess
from tests.support.oracle.outlines import outline

SETTINGS = {
    "authorizer_class_name": AUTHORIZER_CLASS,
    "super_users": "User:ANONYMOUS;User:admin",
    "delegation_token_secret_key": "secret",
}


class Client(SomeAccess):
    """The client of a forwarding broker."""

    def __init__(self, name: str, host: str = "10.1.2.3") -> None:
        super().__init__()
        self.principal = Principal("User", name)
        self.host = host


@pytest.fixture
async def guarded(nodes: Nodes) -> Node:
    return await nodes.start(**SETTINGS)


@pytest.fixture
async def server(guarded: Node) -> AsyncIterator[Server]:
    """The listener for controllers."""
    server = Server(guarded.reactor, guarded.config, AsyncioNetwork(), Router(guarded, "controller"), guarded.slices)
    assert guarded.authorizer is not None
    server.access = guarded.authorizer.access
    server.serve()
    yield server
    server.abort()


@pytest.fixture
async def broker(server: Server) -> AsyncIterator[Peer]:
    """The connection of a broker to it: User:ANONYMOUS."""
    address = await server.bind(Endpoint("CONTROLLER", "127.0.0.1", 0))
    await server.accept()
    peer = Peer(*await asyncio.open_connection(*address))
    yield peer
    peer.writer.close()


async def forwarded(broker: Peer, request: Any, name: str, version: int | None = None) -> Any:
    """The answer to a request of a user that the broker forwards."""
    version = request.VERSIONS[1] if version is None else version
    sealed = finished(seal(request, version, Client(name), "c"))
    answer = await broker.call(sealed.envelope, 0)
    return finished(open_answer(request, version, answer))


def creation(*names: str) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=5_000)


@pytest.mark.parametrize(("name", "code"), [("admin", 0), ("alice", ErrorCode.TOPIC_AUTHORIZATION_FAILED)])
@pytest.mark.parametrize("version", [2, 4, 7])
async def test_the_permissions_of_the_client_count_not_those_of_the_broker(
    broker: Peer, guarded: Node, name: str, code: int, version: int
) -> None:
    answer = await forwarded(broker, creation("t"), name, version)
    assert [topic.error_code for topic in answer.topics] == [code]
    assert (guarded.current_image.image.topic("t") is not None) == (not code)


async def test_a_request_about_the_cluster_is_refused_as_a_whole(broker: Peer) -> None:
    assert (await forwarded(broker, UpdateFeaturesRequest(), "alice")).error_code == 31
    assert (await forwarded(broker, DescribeQuorumRequest(), "alice")).error_code == 31
    assert (await forwarded(broker, DescribeQuorumRequest(), "admin")).error_code == 0


@pytest.mark.parametrize(
    ("principal", "owner", "code"),
    [
        (Principal("User", "alice"), "", 0),
        (Principal("User", "alice"), "bob", ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED),
        (Principal("User", "admin"), "bob", 0),
        (Principal("User", "alice", token=True), "", ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        (ANONYMOUS, "", ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
    ],
    ids=["own", "another owner", "super user", "by a token", "anonymous"],
)
async def test_the_controller_does_not_trust_a_broker_with_delegation_tokens(
    broker: Peer, guarded: Node, principal: Principal, owner: str, code: int
) -> None:
    request = CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name=owner, max_lifetime_ms=-1)
    client = Client(principal.name)
    client.principal = principal
    sealed = finished(seal(request, 3, client, "c"))
    answer: Any = finished(open_answer(request, 3, await broker.call(sealed.envelope, 0)))
    assert answer.error_code == code
    assert answer.principal_name == (owner or principal.name)
    assert len(guarded.current_image.image.delegation_tokens) == (not code)


async def test_a_long_request_and_a_long_answer_go_through(broker: Peer) -> None:
    names = [f"topic-{number}" for number in range(2_000)]
    answer = await forwarded(broker, DeleteTopicsRequest(topic_names=names, timeout_ms=5_000), "alice", 5)
    assert {(topic.name, topic.error_code) for topic in answer.responses} == {(name, 29) for name in names}


async def test_the_longest_request_of_a_client_fits_into_an_envelope(broker: Peer) -> None:
    """In the version of a client without ids it had less than 8 MiB."""
    states = [DeleteTopicState(name=f"{number:05}" + "x" * 120) for number in range(60_000)]
    request = DeleteTopicsRequest(topics=states, timeout_ms=30_000)
    assert len(encode(request, 6)) > 8 * 1024 * 1024 > len(encode(names_only(states), 5))
    answer = await forwarded(broker, request, "alice")
    assert {topic.error_code for topic in answer.responses} == {29}
    assert len(answer.responses) == 60_000


def names_only(states: list[DeleteTopicState]) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=[state.name or "" for state in states])


def changed(**values: Any) -> EnvelopeRequest:
    sealed = finished(seal(creation("t"), 7, Client("admin"), "c")).envelope
    for name, value in values.items():
        setattr(sealed, name, value)
    return sealed


def sealed_data(request: Any, version: int) -> bytes:
    data: bytes = finished(seal(request, version, Client("admin"), "c")).envelope.request_data
    return data


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        (changed(request_principal=b"\0\7x"), ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (changed(request_principal=None), ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (changed(client_host_address=b"12345"), ErrorCode.INVALID_REQUEST),
        (changed(request_data=sealed_data(MetadataRequest(), 12)), ErrorCode.INVALID_REQUEST),
        (changed(request_data=b"\0"), ErrorCode.UNSUPPORTED_VERSION),
        (changed(request_data=b"\0\x13\0\x63" + bytes(20)), ErrorCode.UNSUPPORTED_VERSION),
        (changed(request_data=sealed_data(creation("t"), 7)[:-9]), ErrorCode.UNSUPPORTED_VERSION),
    ],
    ids=["principal", "no principal", "address", "not forwarded", "no header", "unknown version", "cut off"],
)
async def test_a_malformed_envelope_is_refused_and_the_connection_stays(
    broker: Peer, envelope: EnvelopeRequest, code: int
) -> None:
    answer = await broker.call(envelope, 0)
    assert (answer.error_code, answer.response_data) == (code, None)
    assert (await forwarded(broker, creation("u"), "admin")).topics[0].error_code == 0


async def test_a_node_without_cluster_action_forwards_nothing(server: Server, broker: Peer, guarded: Node) -> None:
    (connection,) = server.connections
    connection.authenticated(Principal("User", "stranger"))
    answer = await broker.call(changed(), 0)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert guarded.current_image.image.topic("t") is None


NODES_ASK = [
    api for api in API.values() if "controller" in api.listeners and (api.key == 1 or api.cluster_operation is not None)
]


@pytest.mark.parametrize("api", NODES_ASK, ids=lambda api: api.name)
async def test_a_stranger_gets_nothing_from_the_controller_listener(server: Server, broker: Peer, api: Api) -> None:
    """A user without an ACL, in the place of a broker or of another controller."""
    (connection,) = await accepted(server, broker)
    connection.authenticated(Principal("User", "stranger"))
    request: Any = api.request()
    if isinstance(request, FetchRequest):
        request.replica_state = ReplicaState(replica_id=7)
    if isinstance(request, DescribeAclsRequest):
        request.resource_type_filter = request.operation = request.permission_type = 1
    answer = await broker.call(request, min(api.versions[1], api.advertised[1]))
    told = outline(answer)
    if api.name in ("CreateAcls", "DeleteAcls", "AlterUserScramCredentials", "AlterClientQuotas"):
        assert told == {}  # these name the refusal in each element, and here is none
    else:
        assert told["error_code"] == "CLUSTER_AUTHORIZATION_FAILED"


async def accepted(server: Server, broker: Peer) -> list[Any]:
    """The connections, once the server knows them."""
    await broker.call(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
    return list(server.connections)


async def test_a_broker_needs_cluster_action_only(server: Server, broker: Peer, guarded: Node) -> None:
    """DescribeQuorum, too: a broker asks it to know when its metadata has caught up."""
    acl = AccessControlEntryRecord(
        id=bytes([1] * 16),
        resource_type=AclResourceType.CLUSTER,
        resource_name=CLUSTER_NAME,
        pattern_type=PatternType.LITERAL,
        principal="User:broker",
        host="*",
        operation=AclOperation.CLUSTER_ACTION,
        permission_type=AclPermission.ALLOW,
    )
    assert guarded.quorum_controller is not None
    made = asyncio.Event()
    guarded.quorum_controller.submit(lambda _view: MetadataDecision(None, [acl]), lambda _answer: made.set())
    await made.wait()
    (connection,) = await accepted(server, broker)
    connection.authenticated(Principal("User", "broker"))
    assert (await forwarded(broker, creation("t"), "admin")).topics[0].error_code == 0
    assert (await broker.call(DescribeQuorumRequest(), 2)).error_code == 0
    assert (await broker.call(UpdateFeaturesRequest(), 2)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_the_address_of_a_client_is_that_of_its_access() -> None:
    for host, packed in (("10.1.2.3", 4), ("0:0:0:0:0:0:0:1", 16), ("fe80:0:0:0:0:0:0:1%eth0", 16)):
        access: Access = Client("alice", host)
        assert len(finished(seal(creation("t"), 7, access, "c")).envelope.client_host_address) == packed
    with pytest.raises(BrokerError, match="internet address"):
        finished(seal(creation("t"), 7, Client("alice", "somewhere"), "c"))


def test_a_principal_is_written_as_in_kafka() -> None:
    token = DefaultPrincipalData(type="User", name="bob", token_authenticated=True)
    assert encode_versioned(token, 0) == b"\0\0\5User\4bob\1\0"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR),  # no data
    ],
)
def test_a_client_learns_nothing_of_a_refusal_of_its_broker(code: ErrorCode, told: ErrorCode) -> None:
    with pytest.raises(BrokerError) as refused:
        finished(open_answer(creation("t"), 7, EnvelopeResponse(error_code=code)))
    assert refused.value.code is told
