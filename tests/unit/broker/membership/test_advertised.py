"""What a node gives to clients as its addresses, and which of them lead back to the client's own machine."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.membership.advertised import advertised_endpoints, loopback_only

QUORUM = {"node.id": "4", "process.roles": "broker", "controller.quorum.voters": "1@one:9093"}


@pytest.mark.parametrize(
    ("settings", "host_name", "address", "warned"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, "broker.example", ("broker.example", 9092), []),
        ({**QUORUM, "listeners": "PLAINTEXT://:9092"}, "broker.example", ("broker.example", 9092), []),
        ({"listeners": "PLAINTEXT://:0"}, "localhost", ("localhost", 4711), ["PLAINTEXT"]),
        ({"listeners": "PLAINTEXT://0.0.0.0:0"}, "broker.example", ("127.0.0.1", 4711), ["PLAINTEXT"]),
        ({"listeners": "PLAINTEXT://[::]:9092"}, "broker.example", ("::1", 9092), ["PLAINTEXT"]),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, "broker.example", ("127.0.0.1", 9092), []),
        (
            {**QUORUM, "listeners": "PLAINTEXT://0.0.0.0:0", "advertised.listeners": "PLAINTEXT://proxy:0"},
            "broker.example",
            ("proxy", 4711),
            [],
        ),
    ],
)
def test_advertised_addresses(
    settings: dict[str, str], host_name: str, address: tuple[str, int], warned: list[str]
) -> None:
    config = BrokerConfig(settings)
    config.host_name = host_name
    (found,) = advertised_endpoints(config, {"PLAINTEXT": ("0.0.0.0", 4711)})
    assert ((found.host, found.port), loopback_only(config)) == (address, warned)
