"""The limits of connections, as Kafka's ConnectionQuotas has them: numbers in, waits and refusals out."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.front.connection_quotas import ConnectionQuotas
from barnabas.errors import BrokerError, LocalProtocolError


def quotas(
    protected: str | None = None, listeners: tuple[str, ...] = ("CLIENTS", "BROKERS"), **settings: str
) -> ConnectionQuotas:
    made = ConnectionQuotas(config(**settings), protected)
    for listener in listeners:
        made.add_listener(listener)
    return made


def config(**settings: str) -> BrokerConfig:
    protocols = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT"}
    return BrokerConfig(protocols | {key.replace("_", "."): value for key, value in settings.items()})


def test_all_listeners_together_have_max_connections() -> None:
    each = quotas(max_connections="3")
    for listener in ("CLIENTS", "BROKERS", "CLIENTS"):
        assert each.wait_ms(listener, 0) == 0
        each.opened(listener, 0)
    assert (each.wait_ms("CLIENTS", 0), each.wait_ms("BROKERS", 0)) == (-1, -1), "until one ends"
    each.closed("BROKERS")
    assert each.wait_ms("CLIENTS", 0) == 0


def test_the_listener_between_brokers_goes_on_and_others_give_way() -> None:
    each = quotas("BROKERS", max_connections="2")
    each.opened("CLIENTS", 0)
    each.opened("CLIENTS", 0)
    assert (each.wait_ms("CLIENTS", 0), each.wait_ms("BROKERS", 0), each.excess) == (-1, 0, 0)
    each.opened("BROKERS", 0)
    assert each.excess == 1
    each.closed("CLIENTS")
    assert each.excess == 0


def test_a_broker_s_only_listener_is_not_protected() -> None:
    each = quotas("CLIENTS", ("CLIENTS",), max_connections="1")
    each.opened("CLIENTS", 0)
    assert each.wait_ms("CLIENTS", 0) == -1


def test_a_listener_s_own_limit_holds_for_the_protected_one_too() -> None:
    each = quotas("BROKERS", listener_name_brokers_max_connections="1", max_connections="9")
    each.opened("BROKERS", 0)
    assert (each.wait_ms("BROKERS", 0), each.wait_ms("CLIENTS", 0)) == (-1, 0)


def test_a_rate_lets_some_through_and_the_rest_later() -> None:
    each = quotas(
        "BROKERS", max_connection_creation_rate="10", listener_name_brokers_max_connection_creation_rate="1000"
    )
    for _ in range(10):
        assert each.wait_ms("CLIENTS", 0) == 0
        each.opened("CLIENTS", 0)
    wait_ms = each.wait_ms("CLIENTS", 0)
    assert 100 <= wait_ms <= 101
    assert each.wait_ms("BROKERS", 0) == 0, "the rate of all listeners does not stop the one between brokers"
    assert each.wait_ms("CLIENTS", wait_ms) == 0
    arrived = 0
    for now_ms in range(wait_ms, wait_ms + 10_000):
        if each.wait_ms("CLIENTS", now_ms) == 0:
            each.opened("CLIENTS", now_ms)
            arrived += 1
    assert 99 <= arrived <= 101, "ten a second"


def test_a_rate_of_one_listener() -> None:
    each = quotas(listener_name_clients_max_connection_creation_rate="1")
    each.opened("CLIENTS", 0)
    assert each.wait_ms("CLIENTS", 0) > 900
    assert each.wait_ms("BROKERS", 0) == 0


def test_an_address_has_its_limit_and_another_may_have_its_own() -> None:
    each = quotas(max_connections_per_ip="2", max_connections_per_ip_overrides="10.0.0.1:3, ::1:1,10.0.0.9:0")
    assert [each.arrived("10.0.0.7") for _ in range(2)] == [None, None]
    assert each.arrived("10.0.0.7") == "10.0.0.7 has 2 connections already (max.connections.per.ip)"
    each.left("10.0.0.7")
    each.left("10.0.0.7")
    assert each.arrived("10.0.0.7") is None
    assert [each.arrived("10.0.0.1") is None for _ in range(4)] == [True, True, True, False]
    assert [each.arrived("::1") is None for _ in range(2)] == [True, False]
    assert each.arrived("10.0.0.9") is not None, "none at all"


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:", "10.0.0.1:-1", "name:5", "10.0.0.1:5;10.0.0.2:6"])
def test_overrides_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(BrokerError, match="write pairs of an IP address and a number"):
        config(max_connections_per_ip_overrides=text)


def test_limits_change_at_run_time() -> None:
    settings = config(max_connections="5")
    each = ConnectionQuotas(settings)
    each.add_listener("CLIENTS")
    for _ in range(4):
        each.opened("CLIENTS", 0)
    settings.reconfigure({"max.connections": "3"}, {})
    assert (each.wait_ms("CLIENTS", 0), each.excess) == (-1, 1)
    settings.reconfigure(
        {"max.connections": "3"}, {"max.connections": "9", "listener.name.clients.max.connections": "4"}
    )
    assert (each.wait_ms("CLIENTS", 0), each.excess) == (-1, 0)
    settings.reconfigure({}, {"listener.name.clients.max.connections": "five"})
    assert each.wait_ms("CLIENTS", 0) == 0


def test_a_listener_s_setting_is_checked_and_known() -> None:
    assert config(listener_name_clients_max_connections="3").unknown_keys == ()
    with pytest.raises(BrokerError, match=r"max\.connections"):
        config(listener_name_clients_max_connections="many")


def test_a_value_of_a_listener_comes_from_the_first_layer_that_sets_it() -> None:
    settings = config(max_connections="9", listener_name_clients_max_connections="7")
    assert settings.listener_value("OTHERS", "max.connections") == 9
    assert settings.listener_value("Clients", "max.connections") == 7
    settings.reconfigure({"listener.name.clients.max.connections": "6"}, {"max.connections": "8"})
    assert settings.listener_value("CLIENTS", "max.connections") == 6
    assert settings.listener_value("OTHERS", "max.connections") == 8
    settings.reconfigure({"listener.name.clients.max.connections": "6"}, {"listener.name.clients.max.connections": "5"})
    assert settings.listener_value("CLIENTS", "max.connections") == 5
    settings.reconfigure({}, {"listener.name.clients.max.connections": "many"})
    assert settings.listener_value("CLIENTS", "max.connections") == 7
    assert settings.listener_value("CLIENTS", "scram-sha-256.max.connections") == 9  # a mechanism's value
    with pytest.raises(LocalProtocolError, match=r"no\.such\.key"):
        settings.listener_value("CLIENTS", "no.such.key")
