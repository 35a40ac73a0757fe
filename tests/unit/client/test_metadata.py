"""The client's picture of the cluster: what newer and older answers do to it."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client.errors import IllegalState
from barnabas.client.net.core.connection_config import parse_bootstrap
from barnabas.client.net.core.metadata import NO_ID, ClusterMetadata
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID, OTHER = bytes(15) + b"\x01", bytes(15) + b"\x02"
TP = TopicPartition("t", 0)


def answer(
    leader: int, epoch: int, *, topic_id: bytes = ID, error: ErrorCode = ErrorCode.NONE, name: str = "t"
) -> MetadataResponse:
    partitions = [] if error else [MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)]
    return MetadataResponse(
        cluster_id="c",
        controller_id=1,
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=9)],
        topics=[MetadataResponseTopic(name=name, topic_id=topic_id, error_code=error, partitions=partitions)],
    )


@pytest.fixture
def view() -> ClusterMetadata:
    view = ClusterMetadata()
    view.update(answer(1, 5), 10, whole=False)
    return view


def test_what_an_answer_tells(view: ClusterMetadata) -> None:
    assert (view.cluster_id, view.controller_id, view.updated_ms) == ("c", 1, 10)
    assert view.brokers[1].host == "h"
    assert (view.leaders[TP], view.leader_epochs[TP], view.topic_id("t"), view.names[ID]) == (1, 5, ID, "t")
    assert (view.partition_count("t"), view.partition_count("other"), view.topic_id("other")) == (1, 0, NO_ID)
    assert view.topics["t"].available == (0,)


def test_an_older_epoch_changes_nothing(view: ClusterMetadata) -> None:
    view.update(answer(2, 4), 20, whole=False)
    assert (view.leaders[TP], view.leader_epochs[TP]) == (1, 5)
    view.update(answer(2, 6), 20, whole=False)
    assert (view.leaders[TP], view.leader_epochs[TP]) == (2, 6)


def test_a_topic_made_anew_begins_with_its_own_epochs(view: ClusterMetadata) -> None:
    view.update(answer(2, 0, topic_id=OTHER), 20, whole=False)
    assert (view.leaders[TP], view.leader_epochs[TP], view.topic_id("t")) == (2, 0, OTHER)
    assert ID not in view.names


def test_a_partition_without_leader_is_not_available(view: ClusterMetadata) -> None:
    view.update(answer(-1, 6), 20, whole=False)
    assert TP not in view.leaders
    assert view.topics["t"].available == ()
    assert view.partition_count("t") == 1


def test_hints_are_taken_when_they_are_newer(view: ClusterMetadata) -> None:
    assert not view.hint(TP, 3, 5)
    assert not view.hint(TP, -1, 9)
    assert view.hint(TP, 3, 6)
    assert view.leaders[TP] == 3
    view.update(answer(1, 5), 30, whole=False)
    assert view.leaders[TP] == 3, "the broker that answered lags behind the hint"


def test_errors_of_a_topic(view: ClusterMetadata) -> None:
    view.update(answer(-1, -1, error=ErrorCode.LEADER_NOT_AVAILABLE), 20, whole=False)
    assert view.leaders[TP] == 1, "a broker that is still catching up says nothing new"
    view.update(answer(-1, -1, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 20, whole=False)
    assert TP not in view.leaders
    assert view.topics["t"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    view.update(answer(1, 0), 20, whole=False)
    assert view.leaders[TP] == 1


def test_an_answer_about_all_topics_forgets_the_others(view: ClusterMetadata) -> None:
    view.update(answer(1, 0, topic_id=OTHER, name="u"), 20, whole=False)
    assert set(view.topics) == {"t", "u"}
    view.update(answer(1, 0, topic_id=OTHER, name="u"), 20, whole=True)
    assert set(view.topics) == {"u"}
    assert TP not in view.leaders


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap_addresses(given: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(given) == addresses


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "contains no address"),
        ([], "contains no address"),
        ("localhost:", "is not host:port"),
        ("localhost:kafka", "is not host:port"),
        (":9092", "is not host:port"),
        ("::1", "needs brackets"),
        ("fe80::1:9092", "needs brackets"),
        ("[::1:9092", "needs brackets"),
        ("localhost:0", "from 1 to 65535"),
        ("localhost:65536", "from 1 to 65535"),
        ("PLAINTEXT://localhost:9092", "URL"),
        (None, "must be 'host:port'"),
        (9092, "must be 'host:port'"),
        ([("localhost", 9092)], "must be 'host:port'"),
    ],
)
def test_bootstrap_addresses_that_are_none(given: Any, says: str) -> None:
    with pytest.raises(IllegalState, match=says):
        parse_bootstrap(given)
