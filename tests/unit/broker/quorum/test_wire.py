"""The quorum's values through Kafka's messages, in every version, and what is refused as a whole."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from barnabas.broker.config.broker_config import Endpoint
from barnabas.broker.quorum.core import wire
from barnabas.broker.quorum.core.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    Fetch,
    FetchReply,
    LogPoint,
    RaftRequest,
    RaftResponse,
    SnapshotFetch,
    SnapshotReply,
    Vote,
    VoteReply,
)
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.messages.quorum import VoteRequest, VoteResponse
from barnabas.protocol.schema import decode, encode

VOTERS = {1: Endpoint("CONTROLLER", "one", 9093), 2: Endpoint("CONTROLLER", "two", 9093)}
DIRECTORY = bytes(range(16))
EXCHANGES: list[tuple[RaftRequest, RaftResponse, range]] = [
    (Vote(7, 1, LogPoint(6, 100), pre_vote=True), VoteReply(ErrorCode.NONE, 2, 7, granted=True), range(2, 3)),
    (Vote(7, 1, LogPoint(6, 100), pre_vote=False), VoteReply(ErrorCode.FENCED_LEADER_EPOCH, -1, 8), range(3)),
    (BeginEpoch(7, 1), EpochReply(ErrorCode.NONE, 1, 7), range(2)),
    (EndEpoch(7, 1, (3, 2)), EpochReply(ErrorCode.INVALID_REQUEST, 1, 7), range(2)),
    (
        Fetch(7, 5, LogPoint(6, 100), 90, 500, DIRECTORY),
        FetchReply(ErrorCode.NONE, 1, 7, 95, 10, records=b"batches"),
        range(18, 19),
    ),
    (
        Fetch(7, 5, LogPoint(6, 100), 2**63 - 1, 500),
        FetchReply(ErrorCode.NONE, 1, 7, 95, 10, diverging=LogPoint(5, 60)),
        range(12, 17),
    ),
    (
        Fetch(7, 5, LogPoint(6, 100), 2**63 - 1, 500),
        FetchReply(ErrorCode.NONE, 1, 7, 95, 10, snapshot=SnapshotId(80, 6)),
        range(12, 17),
    ),
    (
        SnapshotFetch(7, 5, SnapshotId(80, 6), 1_000, 4_096),
        SnapshotReply(ErrorCode.NONE, 1, 7, SnapshotId(80, 6), 5_000, 1_000, b"part"),
        range(2),
    ),
]


def values(value: Any) -> dict[str, Any]:
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: bytes(each) if isinstance(each, memoryview) else each for name, each in found.items()}


def through(message: Any, version: int) -> Any:
    return decode(type(message), encode(message, version), version)


@pytest.mark.parametrize(("request_", "reply", "versions"), EXCHANGES)
def test_there_and_back(request_: RaftRequest, reply: RaftResponse, versions: range) -> None:
    for version in versions:
        message = wire.request_message(
            request_, cluster_id="c", to=2, directory_id=DIRECTORY, endpoint=VOTERS[1], max_bytes=4_096
        )
        read = wire.read_request(through(message, version), version, cluster_id="c", node_id=2)
        expected = values(request_)
        if "directory_id" in expected:  # carried from version 17 of Fetch, and 1 of FetchSnapshot
            told = version in (1, 18) or (version == 2 and isinstance(request_, Vote))
            expected["directory_id"] = DIRECTORY if told else bytes(16)
        assert values(read) == expected
        answer = through(wire.reply_message(request_, reply, VOTERS), version)
        assert values(wire.read_reply(answer)) == values(reply)


def test_the_leaders_address_goes_along() -> None:
    message = wire.reply_message(EXCHANGES[1][0], VoteReply(ErrorCode.NONE, 2, 7), VOTERS)
    assert isinstance(message, VoteResponse)
    assert [(each.node_id, each.host, each.port) for each in message.node_endpoints] == [(2, "two", 9093)]


@pytest.mark.parametrize(("request_", "_reply", "versions"), EXCHANGES)
def test_what_is_refused_as_a_whole(request_: RaftRequest, _reply: RaftResponse, versions: range) -> None:
    version = versions[-1]
    message: Any = wire.request_message(
        request_, cluster_id="c", to=2, directory_id=DIRECTORY, endpoint=None, max_bytes=4_096
    )
    with pytest.raises(BrokerError, match="INCONSISTENT_CLUSTER_ID: it is of cluster c, this node of d"):
        wire.read_request(message, version, cluster_id="d", node_id=2)
    if isinstance(request_, Vote | BeginEpoch):
        with pytest.raises(BrokerError, match="INVALID_VOTER_KEY: it means voter 2, this is node 3"):
            wire.read_request(message, version, cluster_id="c", node_id=3)
    message.topics.append(message.topics[0])
    with pytest.raises(BrokerError, match="INVALID_REQUEST"):
        wire.read_request(message, version, cluster_id="c", node_id=2)
    refused = wire.read_reply(through(wire.refusal(message, ErrorCode.INVALID_REQUEST), version))
    assert (refused.error, refused.leader_id, refused.epoch) == (ErrorCode.INVALID_REQUEST, -1, 0)


def test_answers_that_say_nothing_are_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="VoteResponse without __cluster_metadata-0"):
        wire.read_reply(VoteResponse())
    with pytest.raises(RemoteProtocolError, match="error code 9999 does not exist"):
        wire.read_reply(FetchResponse(error_code=9999))


def test_a_request_without_cluster_or_voter_is_taken() -> None:
    message = wire.request_message(
        EXCHANGES[1][0], cluster_id="c", to=2, directory_id=DIRECTORY, endpoint=None, max_bytes=1
    )
    assert isinstance(message, VoteRequest)
    message.cluster_id = None
    assert isinstance(wire.read_request(through(message, 0), 0, cluster_id="d", node_id=9), Vote)
