"""Brokers as an older release of Kafka: what they announce, serve and refuse, by raw requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.protocol import registry
from barnabas.protocol.messages.acls import DescribeAclsRequest
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from barnabas.protocol.messages.metadata import ApiVersionsRequest, DescribeTopicPartitionsRequest, MetadataRequest
from barnabas.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from barnabas.testing import Broker, Cluster, KitError
from barnabas.testing.kafka_releases import API_CHANGES, FEATURE_CHANGES
from barnabas.testing.versions import kafka_release
from tests.support.oracle.wire import Wire

ASK = ApiVersionsRequest(client_software_name="x", client_software_version="1")
UNSUPPORTED_VERSION = 35
SECURITY = (29, 30, 31, 38, 39, 40, 41, 48, 49, 50, 51)  # ACLs, delegation tokens, quotas, SCRAM users
ANY_ACL = DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)
TELEMETRY = {71, 72}  # announced only by a broker that exports what clients push, as Kafka does with a plugin


@pytest.fixture(scope="module", params=["2.8", "3.6", "3.9", "4.0", "4.3"])
def dated(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A release, and the address of a broker as of that release."""
    with Broker(as_version=request.param) as kafka:
        yield request.param, kafka.bootstrap_servers


def test_the_announced_versions_are_those_of_the_release(dated: tuple[str, str]) -> None:
    name, address = dated
    expected = kafka_release(name)
    with Wire(address) as wire:
        answer = wire.call(ASK, 3)
    apis = {key: each for key, each in expected.apis.items() if key not in TELEMETRY}
    assert {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys} == apis
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    assert finalized == {each: levels[2] for each, levels in expected.features.items() if levels[2] > 0}
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    assert supported == {each: levels[:2] for each, levels in expected.features.items() if levels[0] > 0}


def test_every_announced_version_is_served(dated: tuple[str, str]) -> None:
    release = kafka_release(dated[0])
    for key, (low, high) in release.apis.items():
        served = release.served[key]
        assert served[1] == high
        assert served[0] == low or key == registry.PRODUCE_KEY  # announced for librdkafka only


def test_acls_tokens_users_and_quotas_are_served_in_the_versions_of_the_release(dated: tuple[str, str]) -> None:
    name, address = dated
    for key in SECURITY:
        kind, (low, high) = registry.API[key].request, kafka_release(name).apis[key]
        request = ANY_ACL if kind is DescribeAclsRequest else kind()
        for version in (low, high):
            assert not _closes(address, request, version), (key, version)
        if high < kind.VERSIONS[1]:
            assert _closes(address, request, high + 1), (key, high + 1)


def test_api_versions_above_the_release_gets_its_range(dated: tuple[str, str]) -> None:
    name, address = dated
    highest = kafka_release(name).apis[registry.API_VERSIONS_KEY][1]
    if highest == ApiVersionsRequest.VERSIONS[1]:
        assert name >= "3.9"  # an unlimited broker, too, answers the versions above
        return
    with Wire(address) as wire:
        correlation = wire.send(ASK, highest + 1)
        answer = wire.receive(registry.API_VERSIONS_KEY, 0, correlation)
        assert answer.error_code == UNSUPPORTED_VERSION
        [own] = answer.api_keys
        assert (own.api_key, own.min_version, own.max_version) == (registry.API_VERSIONS_KEY, 0, highest)
        assert wire.call(ASK, highest).error_code == 0


def _closes(address: str, request: Any, version: int) -> bool:
    with Wire(address) as wire:
        try:
            wire.call(request, version)
        except ConnectionResetError:
            return True
    return False


@pytest.mark.parametrize("mode", ["thread", pytest.param("process", marks=pytest.mark.process)])
def test_a_version_above_the_release_closes_the_connection(mode: Any) -> None:
    with Broker(as_version="3.6", mode=mode) as kafka:
        address = kafka.bootstrap_servers
        assert _closes(address, MetadataRequest(topics=[]), 13)
        assert not _closes(address, MetadataRequest(topics=[]), 12)
        assert _closes(address, DescribeTopicPartitionsRequest(topics=[]), 0)
        ends = EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True)
        assert _closes(address, ends, 5)
        assert _closes(address, InitProducerIdRequest(transaction_timeout_ms=1), 5)
        assert not _closes(address, InitProducerIdRequest(transaction_timeout_ms=1), 4)
        kafka.kill()
        kafka.restart()
        assert _closes(address, MetadataRequest(topics=[]), 13)


def test_consumer_groups_are_announced_but_not_enabled_before_4(dated: tuple[str, str]) -> None:
    name, address = dated
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    if name in ("2.8", "3.6"):
        assert _closes(address, request, 0)
        return
    with Wire(address) as wire:
        code = wire.call(request, 0).error_code
    assert (code == UNSUPPORTED_VERSION) is (name == "3.9")


def test_brokers_among_themselves_are_not_limited() -> None:
    """Replication needs a version of Fetch, and markers one of AddPartitionsToTxn, that 2.8 does not have."""
    with Cluster(3, as_version="2.8", topics={"orders": 3}) as kafka:
        kafka.kill(kafka.leader("orders", 0))
        assert kafka.leader("orders", 0) in {1, 2, 3}
        kafka.create_topic("more", partitions=3, replication_factor=2)
        kafka.rolling_restart()
        assert sorted(kafka.topics()) == ["more", "orders"]


def test_features_only_grow() -> None:
    assert list(FEATURE_CHANGES) == [each for each in API_CHANGES if each in FEATURE_CHANGES]
    for before, after in itertools.pairwise(API_CHANGES):
        older, newer = kafka_release(before).features, kafka_release(after).features
        assert set(older) <= set(newer)
        assert all(newer[each][1] >= levels[1] for each, levels in older.items())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("3.66", "unknown release of Kafka '3.66'; did you mean '3.6'?"),
        ("5.0", "unknown release of Kafka '5.0'"),
        ("3.6.2", "did you mean '3.6'?"),
        ("", "unknown release of Kafka ''"),
        (3.6, "as_version=3.6: write a text"),
        (36, "unknown release of Kafka 36"),
        (True, "unknown release of Kafka True"),
    ],
)
def test_a_wrong_release_is_refused(name: Any, text: str) -> None:
    with pytest.raises(KitError, match=text.replace("?", r"\?").replace(".", r"\.")):
        Cluster(as_version=name)
