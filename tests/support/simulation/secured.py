"""A simulated cluster with logins on every listener and an authorizer: its settings, its users, and a client without permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from barnabas.broker.config.table import AUTHORIZER_CLASS
from barnabas.client import Admin, KafkaError, NewTopic, Producer
from barnabas.client.admin.types import AclBinding
from barnabas.protocol.acls import AclOperation, AclResourceType, PatternType
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.cluster import ClusterBroker, bootstrap, names
from tests.support.simulation.workload import Broker, Journal, Program

NODE: Final = 'username="node" password="of-node"'
USERS: Final = ("node", "admin", "worker", "outsider")
REAUTH_MS: Final = 20_000  # sessions end many times in a run
JAAS: Final = (
    f"org.apache.kafka.common.security.plain.PlainLoginModule required {NODE} "
    + " ".join(f'user_{name}="of-{name}"' for name in USERS)
    + ";"
)
TARGETS: Final = ("input", "output")
SPREAD_S: Final = 1.0  # until every broker has read a user, its ACLs, a token
NO_PERMISSION: Final = {"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}


def login(user: str, mechanism: str = "PLAIN") -> dict[str, Any]:
    """How a client logs in."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": f"of-{user}",
    }


ADMIN: Final = login("admin")
WORKER: Final = login("worker", "SCRAM-SHA-256")
OUTSIDER: Final = login("outsider")


def secured_brokers(**settings: str) -> dict[str, Broker]:
    """Three nodes that log in at each other; every other client is asked for its permissions."""
    secured = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": JAAS,
        "listener.name.controller.plain.sasl.jaas.config": JAAS,
        "connections.max.reauth.ms": str(REAUTH_MS),
        "authorizer.class.name": AUTHORIZER_CLASS,
        "super.users": "User:node;User:admin",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
    }
    return {
        name: ClusterBroker(
            number, **{"listeners": f"CLIENT://{name}:9092,CONTROLLER://{name}:9093", **secured, **settings}
        )
        for number, name in enumerate(names(3), 1)
    }


async def started(world: World, brokers: dict[str, Broker]) -> None:
    """Starts all nodes and waits until each knows the others."""
    for name, broker in brokers.items():
        world.machine(name).start(broker)
    while True:
        if all(each.node is not None and len(each.node.image.alive_brokers()) == 3 for each in brokers.values()):
            return
        await asyncio.sleep(0.01)


async def allow_the_copy(ports: Ports) -> None:
    """Makes the topics, the user of the copy, and its ACLs."""
    user, topic = "User:worker", AclResourceType.TOPIC
    operations = {"input": (AclOperation.READ, AclOperation.WRITE), "output": (AclOperation.READ, AclOperation.WRITE)}
    acls = [AclBinding(topic, name, user, each) for name, theirs in operations.items() for each in theirs]
    acls += [
        AclBinding(AclResourceType.GROUP, "copy", user, AclOperation.READ),
        AclBinding(
            AclResourceType.TRANSACTIONAL_ID, "copy", user, AclOperation.WRITE, pattern_type=PatternType.PREFIXED
        ),
    ]
    async with Admin(**Journal(bootstrap=bootstrap(), login=ADMIN).clients(ports)) as admin:
        await admin.create_topics([NewTopic(name, 3, 3) for name in TARGETS])
        await admin.create_acls(acls)
        await admin.set_scram_password("worker", "of-worker", mechanism="SCRAM-SHA-256")
    await asyncio.sleep(SPREAD_S)


def intruder(journal: Journal, refused: list[str]) -> Program:
    """Tries again and again to write, to create and to give itself permissions; fails the world if anything is accepted."""

    async def attempt(ports: Ports) -> None:
        clients = Journal(bootstrap=journal.bootstrap, login=OUTSIDER).clients(ports)
        mine = AclBinding(AclResourceType.TOPIC, "input", "User:outsider", AclOperation.ALL)
        async with Admin(**clients) as admin:
            await refusal("create", admin.create_topics([NewTopic("mine", 1, 3)]))
            await refusal("allow", admin.create_acls([mine]))
            await refusal("delete", admin.delete_topics(["input"]))
        async with Producer(delivery_timeout_ms=10_000, request_timeout_ms=5_000, **clients) as producer:
            await refusal("write", producer.send_and_wait("input", b"intruder", partition=0))

    async def refusal(what: str, doing: Awaitable[object]) -> None:
        try:
            await doing
        except KafkaError as error:
            if error.code is not None and error.code.name in NO_PERMISSION:
                refused.append(what)  # else no broker was there
        else:
            raise AssertionError(f"the outsider may {what}")

    async def program(ports: Ports) -> None:
        while True:
            try:
                await attempt(ports)
            except KafkaError:
                pass  # no broker is there
            await asyncio.sleep(1 + ports.rng.random() * 3)

    return program
