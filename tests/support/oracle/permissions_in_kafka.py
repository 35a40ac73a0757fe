"""Asks a real Kafka 4.3.1 the cases of `permission_cases`, over SASL/PLAIN with a user for each combination of ACLs.

To write the golden file anew: python -m tests.support.oracle.permissions_in_kafka
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from barnabas.protocol.messages.delegation_tokens import DescribeDelegationTokenResponse
from tests.support.oracle.outlines import outline
from tests.support.oracle.permission_cases import (
    DOOMED,
    GOLDEN,
    GROUP,
    MEMBERS,
    TOPICS,
    TRANSACTION,
    Acl,
    World,
    cases,
    users,
)
from tests.support.oracle.real_kafka import running_kafka
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.processes.ports import free_port_block
from tests.support.requests import request_of

ACLS_A_REQUEST = 200
# It is asked right after the tokens are made.
FIRST_TO_SEE_TOKENS = "DescribeDelegationToken: only DESCRIBE DELEGATION_TOKEN *"


class AclWire(Wire):
    """A connection that also makes ACLs."""

    def __enter__(self) -> AclWire:
        return self

    def create_acls(self, acls: Sequence[tuple[str, Acl]]) -> None:
        creations = [
            {
                "resource_type": acl.resource_type,
                "resource_name": acl.name,
                "resource_pattern_type": acl.pattern,
                "principal": f"User:{user}",
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
            for user, acl in acls
        ]
        answer = self.call(request_of("CreateAcls", creations=creations), 1)
        assert [each.error_code for each in answer.results] == [0] * len(acls), answer

    def acl_count(self) -> int:
        """How many ACLs the broker knows."""
        every = request_of(
            "DescribeAcls",
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
        assert self.call(request_of("SaslHandshake", mechanism="PLAIN"), 1).error_code == 0
        answer = self.call(request_of("SaslAuthenticate", auth_bytes=b"\0" + user.encode() + b"\0" + user.encode()), 2)
        assert answer.error_code == 0, answer


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
    answer = wire.call(request_of("Metadata", topics=[{"name": name} for name in TOPICS]), 12)
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
    for _ in attempts("Kafka has settled"):
        if condition():
            return


def _is_done(wire: Wire, request: Any, version: int) -> bool:
    answer = repr(outline(wire.call(request, version)))
    return "COORDINATOR" not in answer and "LOAD" not in answer


def _sees_tokens(wire: Wire, request: Any) -> bool:
    answer: DescribeDelegationTokenResponse = wire.call(request, 3)
    return bool(answer.tokens)


def preparations() -> list[tuple[Any, int]]:
    """The requests that prepare either side."""
    parts = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    commit = request_of(
        "OffsetCommit", group_id=GROUP, topics=[{"name": name, "partitions": parts} for name in TOPICS[:2]]
    )
    join = request_of(
        "ConsumerGroupHeartbeat",
        group_id=MEMBERS,
        member_id="AAAAAAAAAAAAAAAAAAAAAQ",
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["open"],
        topic_partitions=[],
    )
    init = request_of("InitProducerId", transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
    return [(commit, 8), (join, 1), (init, 4)]


def write_golden() -> None:
    """Writes the answers of Kafka: one line a case."""
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in kafka_outlines().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_golden()
