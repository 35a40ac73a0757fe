"""Roles, voters and listeners of a node, from its settings."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig, Endpoint
from barnabas.broker.config.properties import parse_properties
from barnabas.errors import BrokerError, ErrorCode


def test_listeners() -> None:
    config = BrokerConfig(
        {
            "listeners": "INTERNAL://:9093,PLAINTEXT://[::1]:0",
            "advertised.listeners": "PLAINTEXT://example.org:443",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        }
    )
    assert config.listeners == (Endpoint("INTERNAL", "", 9093), Endpoint("PLAINTEXT", "::1", 0))
    assert config.listeners[0].security_protocol_id == 0
    assert config.advertised_listeners == (Endpoint("PLAINTEXT", "example.org", 443),)
    assert BrokerConfig().advertised_listeners == BrokerConfig().listeners


@pytest.mark.parametrize(
    ("voters", "factor", "min_isr"),
    [("1@a:1", 1, 1), ("1@a:1,2@b:1", 2, 1), ("1@a:1,2@b:1,3@c:1,4@d:1", 3, 2)],
)
def test_internal_topics_fit_the_quorum(voters: str, factor: int, min_isr: int) -> None:
    config = BrokerConfig({"node.id": "1", "controller.quorum.voters": voters})
    assert config.get_int("offsets.topic.replication.factor") == factor
    assert config.get_int("transaction.state.log.replication.factor") == factor
    assert config.get_int("transaction.state.log.min.isr") == min_isr
    asked = BrokerConfig({"node.id": "1", "controller.quorum.voters": voters, "transaction.state.log.min.isr": "3"})
    assert asked.get_int("transaction.state.log.min.isr") == 3


@pytest.mark.parametrize(("role", "node_id"), [("controller", "1"), ("broker", "2")])
def test_internal_topics_want_three_brokers_where_their_number_is_unknown(role: str, node_id: str) -> None:
    config = BrokerConfig({"process.roles": role, "node.id": node_id, "controller.quorum.voters": "1@a:1"})
    assert config.get_int("offsets.topic.replication.factor") == 3
    assert config.get_int("transaction.state.log.min.isr") == 2


THREE = "3@[::1]:9093,1@one:9093,2@two:9093"


def test_a_lone_node_is_both_and_has_no_controller_listener() -> None:
    config = BrokerConfig()
    assert config.roles == {"broker", "controller"}
    assert (config.voter_endpoints, config.controller_listener) == ({}, None)
    assert config.inter_broker_listener == "PLAINTEXT"


def test_a_voter_listens_where_the_others_look_for_it() -> None:
    config = BrokerConfig({"node.id": "2", "controller.quorum.voters": THREE})
    assert list(config.voter_endpoints.items()) == [
        (1, Endpoint("CONTROLLER", "one", 9093)),
        (2, Endpoint("CONTROLLER", "two", 9093)),
        (3, Endpoint("CONTROLLER", "::1", 9093)),
    ]
    assert config.controller_listener == Endpoint("CONTROLLER", "two", 9093)


def test_the_controller_listener_is_none_of_the_clients() -> None:
    settings = {
        "node.id": "2",
        "controller.quorum.voters": THREE,
        "controller.listener.names": "QUORUM",
        "listeners": "PLAINTEXT://:9092,QUORUM://0.0.0.0:19093,EXTERNAL://:19092",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,QUORUM:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "advertised.listeners": "EXTERNAL://localhost:19092,PLAINTEXT://two:9092,QUORUM://two:9093",
    }
    config = BrokerConfig(settings)
    assert config.controller_listener == Endpoint("QUORUM", "0.0.0.0", 19093)
    assert [each.name for each in config.listeners] == ["PLAINTEXT", "EXTERNAL"]
    assert [each.name for each in config.advertised_listeners] == ["EXTERNAL", "PLAINTEXT"]
    assert config.inter_broker_listener == "PLAINTEXT"
    assert BrokerConfig(settings | {"inter.broker.listener.name": "EXTERNAL"}).inter_broker_listener == "EXTERNAL"


def test_nodes_of_one_role() -> None:
    controller = BrokerConfig({"process.roles": "controller", "node.id": "1", "controller.quorum.voters": THREE})
    assert controller.listeners == ()
    assert controller.controller_listener == Endpoint("CONTROLLER", "one", 9093)
    broker = BrokerConfig({"process.roles": "broker", "node.id": "4", "controller.quorum.voters": THREE})
    assert broker.controller_listener is None
    assert broker.listeners == (Endpoint("PLAINTEXT", "", 9092),)


STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs=/tmp/kraft-combined-logs
"""


def test_the_settings_that_come_with_kafka_4_are_those_of_a_node_alone() -> None:
    config = BrokerConfig(parse_properties(STOCK))
    assert config.voter_endpoints == {1: Endpoint("CONTROLLER", "localhost", 9093)}
    assert config.advertised_listeners == (Endpoint("PLAINTEXT", "localhost", 9092),)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"controller.quorum.voters": "1@a"}, r"Invalid value 1@a .*ID@HOST:PORT"),
        ({"controller.quorum.voters": "1@a:0"}, "ID@HOST:PORT"),
        ({"controller.quorum.voters": "a:9093"}, "ID@HOST:PORT"),
        ({"controller.quorum.voters": "1@0.0.0.0:9093"}, "at which the other nodes reach"),
        ({"controller.quorum.voters": "1@a:1,1@b:1"}, "voter 1 is there twice"),
        ({"controller.quorum.voters": "1@a:1,2@a:1"}, "another voter has the address a:1"),
        ({"controller.quorum.voters": ""}, r"voters: name every controller, .* or remove the setting"),
        ({"controller.quorum.voters": "1@a:1,2@b:1"}, r"node\.id is not set and"),
        ({"process.roles": "broker", "controller.quorum.voters": "9@a:1"}, r"node\.id is not set and"),
        ({"node.id": "1", "controller.quorum.voters": "2@b:1,3@c:1"}, "node 1 .* must be one of the voters"),
        ({"process.roles": "broker"}, r"voters is not set: name every controller"),
        ({"process.roles": "controller"}, r"process\.roles: .*voters is not set: name every controller"),
        (
            {"controller.quorum.bootstrap.servers": "a:1"},
            r"value a:1 .*bootstrap\.servers: .*KIP-853.*voters is not set",
        ),
        (parse_properties(STOCK.replace("=localhost:9093", "=localhost:9094")), "value localhost:9094 .*KIP-853"),
        (parse_properties(STOCK.replace("=localhost:9093", "=localhost:9093,b:9093")), "b:9093 .*KIP-853"),
        ({"process.roles": "broker", "controller.quorum.bootstrap.servers": "localhost:9093"}, "KIP-853"),
        ({"zookeeper.connect": "zk:2181"}, r"value zk:2181 .*zookeeper\.connect: Kafka 4 has no .*voters is not set"),
        (
            {"node.id": "2", "controller.quorum.voters": THREE, "listeners": "PLAINTEXT://0.0.0.0:1"},
            r"value 0\.0\.0\.0 for configuration listeners: no other node .* set advertised\.listeners",
        ),
        ({"listeners": "PLAINTEXT://:1,CONTROLLER://:2"}, r"value CONTROLLER://:2 .*voters is not set"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "at which clients reach"),
        ({"advertised.listeners": "SSL://h:1"}, "listeners has only PLAINTEXT"),
        (
            {"advertised.listeners": "B://h:1", "listener.security.protocol.map": "B:PLAINTEXT,PLAINTEXT:PLAINTEXT"},
            "listeners has only PLAINTEXT",
        ),
        ({"node.id": "1", "process.roles": "broker", "controller.quorum.voters": "1@a:1"}, "cannot be a voter"),
        (
            {
                "node.id": "1",
                "process.roles": "broker",
                "controller.quorum.voters": "2@a:1",
                "listeners": "PLAINTEXT://:1,CONTROLLER://:2",
            },
            "nodes with the role controller alone",
        ),
        ({"listeners": "CONTROLLER://:9093", "controller.quorum.voters": "1@a:1"}, "no listener for clients"),
        (
            {"process.roles": "controller", "listeners": "PLAINTEXT://:9092", "controller.quorum.voters": "1@a:1"},
            "no listeners for clients",
        ),
        (
            {
                "listeners": "A://:1,B://:2,PLAINTEXT://:3",
                "controller.listener.names": "A,B",
                "controller.quorum.voters": "1@a:1",
            },
            "A is a controller listener already",
        ),
        ({"inter.broker.listener.name": "X"}, "listeners PLAINTEXT"),
    ],
)
def test_a_cluster_that_cannot_be_meant_is_refused(settings: dict[str, str], what: str) -> None:
    with pytest.raises(BrokerError, match=what) as refused:
        BrokerConfig(settings)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
