"""What `as_version="4.3"` announces, beside a running Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

from barnabas.protocol import registry
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.testing import Broker
from tests.support.oracle.wire import Wire

# Features that Kafka announces and we do not serve.
UNSERVED_FEATURES = {"kraft.version", "share.version", "streams.version"}


def _answer(address: str) -> Any:
    with Wire(address) as wire:
        return wire.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)


def test_the_newest_release_announces_what_kafka_announces(kafka: str) -> None:
    theirs = _answer(kafka)
    with Broker(as_version="4.3") as broker:
        ours = _answer(broker.bootstrap_servers)
    ranges = {each.api_key: (each.min_version, each.max_version) for each in theirs.api_keys}
    served = {key for key, api in registry.API.items() if "broker" in api.listeners}
    announced = {each.api_key: (each.min_version, each.max_version) for each in ours.api_keys}
    assert announced == {key: versions for key, versions in ranges.items() if key in served}

    def levels(answer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        finalized = {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}
        return supported, finalized

    for mine, other in zip(levels(ours), levels(theirs), strict=True):
        assert mine == {name: each for name, each in other.items() if name not in UNSERVED_FEATURES}
