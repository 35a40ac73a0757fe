"""The table of RPCs."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema, load_response_schema

from barnabas.errors import LocalProtocolError
from barnabas.protocol.registry import API, READS, Api, api_of, request_header_version, response_header_version

ALL_VERSIONS = [
    pytest.param(api, version, id=f"{api.name}-{version}")
    for api in API.values()
    for version in range(api.versions[0], api.versions[1] + 1)
]


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_the_classes_are_of_the_rpc(api: Api) -> None:
    for cls in (api.request, api.response):
        assert cls.__module__ == f"barnabas.protocol.messages.{api.family}"
        assert api.key == cls.API_KEY
        assert api.versions == cls.VERSIONS
        assert api.flexible_since == cls.FLEXIBLE_SINCE


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_what_is_advertised_is_served_but_for_one_known_lie(api: Api) -> None:
    first, last = api.advertised
    assert api.serves(last)
    assert not api.serves(api.versions[1] + 1)
    assert api.serves(first) or api.name == "Produce"
    assert api.stable == (api.name != "InitProducerId")


@pytest.mark.parametrize(("api", "version"), ALL_VERSIONS)
def test_header_versions_are_kio_s(api: Api, version: int) -> None:
    request = load_request_schema(api.key, version).__header_schema__
    response = load_response_schema(api.key, version).__header_schema__
    assert request_header_version(api.key, version) == request.__version__
    assert response_header_version(api.key, version) == response.__version__


def test_api_versions_is_answered_with_the_oldest_header() -> None:
    assert request_header_version(18, 4) == 2
    assert request_header_version(18, 99) == 2
    assert [response_header_version(18, version) for version in (0, 3, 4, 99)] == [0, 0, 0, 0]


def test_an_unknown_key_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="999"):
        api_of(999)
    with pytest.raises(LocalProtocolError):
        request_header_version(999, 0)


def test_requests_that_only_read() -> None:
    names = {API[key].name for key in READS}
    described = {
        f"Describe{what}"
        for what in ("Acls", "ClientQuotas", "Cluster", "Configs", "DelegationToken", "Groups", "LogDirs")
    }
    described |= {
        f"Describe{what}" for what in ("Producers", "Quorum", "TopicPartitions", "Transactions", "UserScramCredentials")
    }
    listed = {
        f"List{what}" for what in ("ConfigResources", "Groups", "Offsets", "PartitionReassignments", "Transactions")
    }
    others = {"ConsumerGroupDescribe", "Fetch", "FindCoordinator", "Metadata", "OffsetFetch", "OffsetForLeaderEpoch"}
    assert names == described | listed | others
