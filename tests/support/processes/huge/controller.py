"""Huge requests that only the controller listener serves: brokers, replicas and Raft."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Final

from barnabas.protocol.messages.envelope import DefaultPrincipalData
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.schema import encode, encode_versioned
from tests.support.processes.huge.request import (
    CLOSED,
    ELEMENTS,
    HALF,
    BrokerObjects,
    Huge,
    id_of,
    named,
    names,
    numbered,
)
from tests.support.processes.huge.topics import metadata_log
from tests.support.requests import Fields, request_of

MANY: Final = ELEMENTS - 1


def alter_partition(world: BrokerObjects, count: int, brokers: int = 1) -> Fields:
    isr = numbered(brokers, 1, key="broker_id", broker_epoch=-1)
    topics = [{"topic_id": world.wide_id, "partitions": numbered(count, leader_epoch=0, new_isr_with_epochs=isr)}]
    return {"broker_id": 1, "broker_epoch": -1, "topics": topics}


def assign_directories(world: BrokerObjects) -> Fields:
    topics = [{"topic_id": world.wide_id, "partitions": numbered(MANY - 1)}]
    return {"broker_id": 1, "directories": [{"id": id_of(1), "topics": topics}]}


def envelope(_world: BrokerObjects) -> Fields:
    """A long request to delete topics that do not exist, by a client of another broker."""
    header = RequestHeader(request_api_key=20, request_api_version=5, correlation_id=1, client_id="huge")
    principal = DefaultPrincipalData(type="User", name="ANONYMOUS", token_authenticated=False)
    inside = request_of("DeleteTopics", topic_names=names(ELEMENTS), timeout_ms=1_000)
    return {
        "request_data": encode(header, 2) + encode(inside, 5),
        "request_principal": encode_versioned(principal, 0),
        "client_host_address": bytes([127, 0, 0, 1]),
    }


def register(**fields: Any) -> Fields:
    return {"broker_id": 77, "cluster_id": "elsewhere", "incarnation_id": id_of(7), **fields}


def listeners() -> list[Fields]:
    return named(names(ELEMENTS), host="h", port=1)


def features() -> list[Fields]:
    return named(names(ELEMENTS), min_supported_version=0, max_supported_version=1)


def directories() -> list[bytes]:
    return [id_of(number) for number in range(ELEMENTS)]


def heartbeat(_world: BrokerObjects) -> Fields:
    return {"broker_id": 77, "broker_epoch": 1, "offline_log_dirs": directories()}


def register_controller(_world: BrokerObjects) -> Fields:
    return {"controller_id": 77, "incarnation_id": id_of(8), "listeners": listeners()}


def row(name: str, version: int, codes: Set[int], fields: Callable[[BrokerObjects], Fields]) -> Huge:
    return Huge(name, version, codes, fields, "controller")


CONTROLLER: Final = (
    row("AlterPartition: many partitions", 3, {11, 77}, lambda w: alter_partition(w, HALF)),
    row("AlterPartition: a large ISR", 3, {11, 77}, lambda w: alter_partition(w, 1, MANY - 1)),
    row("AssignReplicasToDirs: many partitions", 0, {11, 77}, assign_directories),
    row("Envelope: a long request inside", 0, {0}, envelope),
    row("BrokerRegistration: many listeners", 4, {104}, lambda w: register(listeners=listeners())),
    row("BrokerRegistration: many features", 4, {104}, lambda w: register(features=features())),
    row("BrokerRegistration: many directories", 4, {104}, lambda w: register(log_dirs=directories())),
    row("BrokerHeartbeat: many directories", 1, {11, 77, 102}, heartbeat),
    row("ControllerRegistration: many listeners", 0, {0, 3, 35, 42}, register_controller),
    row("Vote: many partitions", 2, {0, 42, 104, CLOSED}, lambda w: metadata_log(MANY)),
    row("BeginQuorumEpoch: many partitions", 1, {0, 42, 104, CLOSED}, lambda w: metadata_log(MANY)),
    row("EndQuorumEpoch: many partitions", 1, {0, 42, 104, CLOSED}, lambda w: metadata_log(MANY)),
    row(
        "FetchSnapshot: many partitions",
        1,
        {0, 3, 42, 98, 104, CLOSED},
        lambda w: metadata_log(MANY, name="name", partition="partition"),
    ),
)
