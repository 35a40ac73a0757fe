"""The core of a connection: bytes out, frames in, versions agreed on, one outcome for every request."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.limits import DECODED_ELEMENTS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.exchange import VALID_PREVIOUS, Exchange, ExchangeState, NoCommonVersion, NotReady
from barnabas.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from barnabas.protocol.messages.header import RequestHeader, ResponseHeader
from barnabas.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.registry import request_header_version, response_header_version
from barnabas.protocol.schema import decode, encode
from tests.support.transitions import follows_the_table

KEYS = [
    ApiVersion(api_key=0, min_version=0, max_version=13),
    ApiVersion(api_key=3, min_version=0, max_version=12),
    ApiVersion(api_key=12, min_version=0, max_version=3),
    ApiVersion(api_key=18, min_version=0, max_version=4),
]


def connection(**settings: Any) -> Exchange:
    core = Exchange("me", **{"request_timeout_ms": 1_000, **settings})
    core.on_connecting()
    return core


def sent(parts: list[Buffer]) -> tuple[RequestHeader, memoryview]:
    """The header of the one request in what is to be written, and its body."""
    data = b"".join(parts)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    api_key, version = int.from_bytes(data[4:6], "big"), int.from_bytes(data[6:8], "big")
    header_version = request_header_version(api_key, version)
    header = decode(RequestHeader, data, header_version, 4)
    return header, memoryview(data)[4 + len(encode(header, header_version)) :]


def answered(header: RequestHeader, response: Any, version: int | None = None) -> memoryview:
    asked = header.request_api_version if version is None else version
    head = encode(
        ResponseHeader(correlation_id=header.correlation_id), response_header_version(header.request_api_key, asked)
    )
    return memoryview(head + encode(response, asked))


def negotiated(**settings: Any) -> Exchange:
    core = connection(**settings)
    header, _ = sent(core.on_connected(0))
    features = [FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)]
    response = ApiVersionsResponse(api_keys=KEYS, finalized_features_epoch=7, finalized_features=features)
    core.on_frame(answered(header, response))
    assert core.own_answer is not None
    assert core.on_own_answer(0) == []
    assert core.state is ExchangeState.READY
    return core


@pytest.mark.parametrize("state", list(ExchangeState))
@pytest.mark.parametrize("previous", list(ExchangeState))
def test_transitions_follow_the_table(previous: ExchangeState, state: ExchangeState) -> None:
    follows_the_table(Exchange("me", request_timeout_ms=1), VALID_PREVIOUS, previous, state)


def test_the_first_request_is_api_versions() -> None:
    header, body = sent(connection().on_connected(0))
    assert (header.request_api_key, header.request_api_version, header.client_id) == (18, 4, "me")
    assert decode(ApiVersionsRequest, body, 4).client_software_name == "barnabas"


def test_versions_and_features_are_kept() -> None:
    core = negotiated()
    assert core.versions[3] == (0, 12)
    assert core.features == (7, {"transaction.version": 2})


def test_a_broker_too_old_for_the_request_names_what_it_can_read() -> None:
    """KIP-511: the answer to an unknown version is of version 0, with error 35 and the range of ApiVersions itself."""
    core = connection()
    header, _ = sent(core.on_connected(0))
    keys = [ApiVersion(api_key=18, min_version=0, max_version=2)]
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
    core.on_frame(answered(header, refusal, 0))
    header, _ = sent(core.on_own_answer(0))
    assert header.request_api_version == 2
    core.on_frame(answered(header, ApiVersionsResponse(api_keys=KEYS)))
    core.on_own_answer(0)
    assert core.state is ExchangeState.READY


def test_the_highest_common_version_is_spoken() -> None:
    core = negotiated()
    got: list[Any] = []
    header, body = sent(core.send(MetadataRequest(topics=None), got.append, 0))
    assert header.request_api_version == 12
    assert decode(MetadataRequest, body, 12).topics is None
    core.on_frame(answered(header, MetadataResponse(cluster_id="c")))
    assert [r.cluster_id for r in got] == ["c"]
    header, _ = sent(core.send(MetadataRequest(), got.append, 0, version_max=5))
    assert header.request_api_version == 5


def test_no_common_version() -> None:
    core = negotiated()
    core.versions[3] = (14, 20)
    with pytest.raises(NoCommonVersion, match="speak 0-13, the broker 14-20"):
        core.send(MetadataRequest(), print, 0)
    del core.versions[3]
    with pytest.raises(NoCommonVersion, match="does not serve MetadataRequest"):
        core.send(MetadataRequest(), print, 0)
    with pytest.raises(NoCommonVersion):
        core.send(ProduceRequest(), print, 0, version_max=2)
    assert core.in_flight == 0


def test_nothing_is_sent_before_versions_are_known() -> None:
    core = connection()
    with pytest.raises(NotReady, match="connecting"):
        core.send(MetadataRequest(), print, 0)
    core.on_connected(0)
    with pytest.raises(NotReady, match="negotiating"):
        core.send(MetadataRequest(), print, 0)


def test_answers_go_to_their_requests_in_order() -> None:
    core = negotiated()
    got: list[tuple[int, Any]] = []
    headers = [
        sent(core.send(HeartbeatRequest(), lambda r, i=i: got.append((i, r.error_code)), 0))[0]  # type: ignore[misc]
        for i in range(3)
    ]
    assert len({h.correlation_id for h in headers}) == 3
    for i, header in enumerate(headers):
        core.on_frame(answered(header, HeartbeatResponse(error_code=i)))
    assert got == [(0, 0), (1, 1), (2, 2)]


def test_an_answer_out_of_turn_breaks_the_connection() -> None:
    core = negotiated()
    core.send(HeartbeatRequest(), print, 0)
    second, _ = sent(core.send(HeartbeatRequest(), print, 0))
    with pytest.raises(RemoteProtocolError, match="was due"):
        core.on_frame(answered(second, HeartbeatResponse()))


def test_an_answer_that_nobody_asked_for_breaks_the_connection() -> None:
    core = negotiated()
    with pytest.raises(RemoteProtocolError, match="never sent"):
        core.on_frame(memoryview(bytes(8)))


@pytest.mark.parametrize("cut", [1, 3])
def test_a_cut_off_answer_breaks_the_connection(cut: int) -> None:
    core = negotiated()
    header, _ = sent(core.send(MetadataRequest(), print, 0))
    with pytest.raises(RemoteProtocolError):
        core.on_frame(answered(header, MetadataResponse(cluster_id="c"))[:-cut])


def test_tags_of_a_response_header_are_skipped() -> None:
    core = negotiated()
    got: list[Any] = []
    header, _ = sent(core.send(MetadataRequest(), got.append, 0))
    body = encode(MetadataResponse(cluster_id="c"), 12)
    tags = b"\x02" + b"\x07\x03abc" + b"\xff\x01\x00"
    core.on_frame(memoryview(header.correlation_id.to_bytes(4, "big") + tags + body))
    assert got[0].cluster_id == "c"
    header, _ = sent(core.send(MetadataRequest(), got.append, 0))
    with pytest.raises(RemoteProtocolError):
        core.on_frame(memoryview(header.correlation_id.to_bytes(4, "big") + b"\x01\x07\x7fabc"))


def test_the_earliest_deadline_counts() -> None:
    core = negotiated()
    core.send(HeartbeatRequest(), print, 100, timeout_ms=5_000)
    header, _ = sent(core.send(HeartbeatRequest(), print, 100))
    assert core.timer_at() == 1_100
    assert core.on_timer(1_099) is None
    assert core.on_timer(1_100) == "Heartbeat"
    assert header.correlation_id


def test_the_deadline_left_is_the_earliest_of_those_that_wait() -> None:
    core = negotiated()
    first, _ = sent(core.send(HeartbeatRequest(), lambda _: None, 0, timeout_ms=700))
    core.send(HeartbeatRequest(), print, 0, timeout_ms=5_000)
    core.send(HeartbeatRequest(), print, 0, timeout_ms=900)
    core.on_frame(answered(first, HeartbeatResponse()))
    assert core.timer_at() == 900


def test_a_lost_connection_fails_what_waits_oldest_first() -> None:
    core = negotiated()
    got: list[tuple[int, Any]] = []
    for i in range(3):
        core.send(HeartbeatRequest(), lambda r, i=i: got.append((i, r)), 0)  # type: ignore[misc]
    error = OSError("lost")
    core.on_lost(error)
    assert got == [(0, error), (1, error), (2, error)]
    assert core.state is ExchangeState.DISCONNECTED
    assert core.timer_at() is None


def test_a_request_without_answer_does_not_wait_for_one() -> None:
    core = negotiated()
    parts = core.send(ProduceRequest(acks=0), print, 0, answered=False)
    assert parts
    assert core.in_flight == 0
    assert core.timer_at() is None


def test_large_batches_are_not_copied() -> None:
    core = negotiated()
    records = bytearray(100_000)
    data = PartitionProduceData(index=0, records=records)
    parts = core.send(ProduceRequest(topic_data=[TopicProduceData(partition_data=[data])]), print, 0)
    assert any(part is records or (isinstance(part, memoryview) and part.obj is records) for part in parts)
    sent(parts)


def test_an_answer_may_have_more_elements_than_a_request() -> None:
    """Metadata of 15,000 partitions: the limit of 100,000 elements is for what strangers send to a broker."""
    partitions = [
        MetadataResponsePartition(partition_index=number, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
        for number in range(15_000)
    ]
    answer = MetadataResponse(topics=[MetadataResponseTopic(name="wide", partitions=partitions)])
    core, answers = negotiated(), list[Any]()
    header, _ = sent(core.send(MetadataRequest(), answers.append, 100))
    core.on_frame(answered(header, answer))
    (decoded,) = answers
    assert isinstance(decoded, MetadataResponse), decoded
    assert len(decoded.topics[0].partitions) == 15_000
    assert DECODED_ELEMENTS_MAX < 15_000 * 7
