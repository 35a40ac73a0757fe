"""Admin has a way to ask for everything that a broker serves."""

from __future__ import annotations

import re
from pathlib import Path

import barnabas.client
from barnabas.protocol.registry import API

NOT_ASKED = {
    "AlterConfigs": "replaces all configs of a resource; IncrementalAlterConfigs takes its place",
    "DescribeTopicPartitions": "Metadata tells the same",
    "GetTelemetrySubscriptions": "the client measures nothing that it could push",
    "SaslAuthenticate": "connections ask it, below the client",
    "SaslHandshake": "connections ask it, below the client",
    "PushTelemetry": "the client measures nothing that it could push",
}


def test_every_request_of_a_broker_is_asked_by_the_client() -> None:
    package = Path(barnabas.client.__file__).parent
    named = set(re.findall(r"\b\w+Request\b", "".join(path.read_text() for path in sorted(package.rglob("*.py")))))
    served = {api.name: api.request.__name__ for api in API.values() if "broker" in api.listeners}
    assert {name for name, request in served.items() if request not in named} == set(NOT_ASKED)
