"""Asks a real Kafka 4.3.1 the cases of `permission_cases`, over SASL/PLAIN with a user for each combination of ACLs.

To write the golden file anew: python -m tests.support.oracle.permissions_in_kafka
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

from barnabas.protocol.messages.acls import DescribeAclsRequest
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from barnabas.protocol.messages.delegation_tokens import DescribeDelegationTokenResponse
from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.protocol.schema import Message
from tests.support.oracle.outlines import outline
from tests.support.oracle.permission_cases import GOLDEN, Acl, cases, users
from tests.support.oracle.permission_requests import DOOMED, GROUP, MEMBERS, TOPICS, TRANSACTION, World
from tests.support.oracle.real_kafka import running_kafka
from tests.support.oracle.wire import Wire
from tests.support.processes.ports import free_port_block

__all__ = ["AclWire", "kafka_outlines", "settle", "write_golden"]

ACLS_A_REQUEST = 200
SETTLED_SECONDS_MAX = 60
# It is asked right after the tokens are made.
FIRST_TO_SEE_TOKENS = "DescribeDelegationToken: only DESCRIBE DELEGATION_TOKEN *"


class AclWire(Wire):
    """A connection that also makes ACLs."""

    def __enter__(self) -> AclWire:
        return self

    def create_acls(self, acls: Sequence[tuple[str, Acl]]) -> None:
        """CreateAcls, version 1."""
        body = pack(">i", len(acls))
        for user, acl in acls:
            body += pack(">b", acl.resource_type) + _text(acl.name) + pack(">b", acl.pattern)
            body += _text(f"User:{user}") + _text(acl.host) + pack(">bb", acl.operation, acl.permission)
        head = pack(">hhi", 30, 1, 77) + _text(self.client_id)
        self.socket.sendall(pack(">i", len(head + body)) + head + body)
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        count = int.from_bytes(frame[8:12], "big")
        assert count == len(acls)
        position = 12
        for _ in range(count):
            assert frame[position : position + 2] == b"\0\0", frame[position:]
            size = int.from_bytes(frame[position + 2 : position + 4], "big", signed=True)
            position += 4 + max(size, 0)

    def acl_count(self) -> int:
        """How many ACLs the broker knows."""
        every = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        return sum(len(resource.acls) for resource in self.call(every, 3).resources)

    def log_in(self, user: str) -> None:
        """SASL/PLAIN; the password is the name."""
        assert self.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        answer = self.call(SaslAuthenticateRequest(auth_bytes=b"\0" + user.encode() + b"\0" + user.encode()), 2)
        assert answer.error_code == 0, answer


def _text(value: str) -> bytes:
    return pack(">h", len(value.encode())) + value.encode()


def kafka_outlines() -> dict[str, Any]:
    """Starts a Kafka and returns the outline of its answer to each case."""
    port = free_port_block(4)
    guarded = port + 2
    names = users()
    logins = " ".join(f'user_{name}="{name}"' for name in names)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1},GUARDED://127.0.0.1:{guarded}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},GUARDED://127.0.0.1:{guarded}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,GUARDED:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {logins};"
        ),
        # Kafka makes no delegation tokens where its controller listener has no login.
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="node" password="node" '
            'user_node="node";'
        ),
        "delegation.token.secret.key": "secret",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:node",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    given = [f"{key}={value}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder, running_kafka(Path(folder), port, given):
        return _ask(f"127.0.0.1:{port}", f"127.0.0.1:{guarded}", names)


def _ask(bootstrap: str, guarded: str, names: dict[str, tuple[Acl, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with AclWire(bootstrap) as admin:
        world = _prepare(admin)
        acls = [(user, acl) for user, theirs in names.items() for acl in theirs]
        for first in range(0, len(acls), ACLS_A_REQUEST):
            admin.create_acls(acls[first : first + ACLS_A_REQUEST])
        settle(lambda: admin.acl_count() == len(set(acls)))
        wires: dict[str, AclWire] = {}
        for case in cases():
            if case.user not in wires:
                wires[case.user] = AclWire(guarded)
                wires[case.user].log_in(case.user)
            if case.recreates:
                admin.create_topic(DOOMED)
                world.ids[DOOMED] = _ids(admin)[DOOMED]
            if case.name == FIRST_TO_SEE_TOKENS:
                settle(partial(_sees_tokens, wires[case.user], case.request(world)))
            found[case.name] = outline(wires[case.user].call(case.request(world), case.version))
        for wire in wires.values():
            wire.close()
    return found


def _ids(wire: Wire) -> dict[str, bytes]:
    answer = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in TOPICS]), 12)
    return {topic.name: topic.topic_id for topic in answer.topics}


def _prepare(wire: Wire) -> World:
    """Topics, a group with offsets, a group with a member, a transactional id."""
    for name in TOPICS:
        wire.create_topic(name)
    wire.find_coordinator(GROUP, 0)
    wire.find_coordinator(TRANSACTION, 1)
    for request, version in preparations():
        settle(partial(_is_done, wire, request, version))
    return World(_ids(wire))


def settle(condition: Callable[[], bool]) -> None:
    """Waits for a condition: a broker of Kafka learns of a change some time after the controller's answer."""
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "Kafka has not settled"
        time.sleep(0.05)


def _is_done(wire: Wire, request: Any, version: int) -> bool:
    answer = repr(outline(wire.call(request, version)))
    return "COORDINATOR" not in answer and "LOAD" not in answer


def _sees_tokens(wire: Wire, request: Message) -> bool:
    answer: DescribeDelegationTokenResponse = wire.call(request, 3)
    return bool(answer.tokens)


def preparations() -> list[tuple[Any, int]]:
    """The requests that prepare either side."""
    parts = [OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")]
    commit = OffsetCommitRequest(
        group_id=GROUP, topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name in TOPICS[:2]]
    )
    join = ConsumerGroupHeartbeatRequest(
        group_id=MEMBERS,
        member_id="AAAAAAAAAAAAAAAAAAAAAQ",
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["open"],
        topic_partitions=[],
    )
    init = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
    return [(commit, 8), (join, 1), (init, 4)]


def write_golden() -> None:
    """Writes the answers of Kafka: one line a case."""
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in kafka_outlines().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_golden()
