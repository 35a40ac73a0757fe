"""Reading from the nearest replica, through the fetcher: whom it asks, how long, and what brings it back to the leader."""

from __future__ import annotations

import pytest

from barnabas.client.consumer.core.fetching import InFlightFetch
from barnabas.client.errors import BrokerUnreachable
from barnabas.client.net.core.metadata import BrokerEndpoint
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.protocol.schema import decode, encode
from tests.support.bench.fetcher import ID, T0, T1, FetcherBench, batch, offsets

AGE_MS = 300_000
WARY_MS = 10_000


class Racks(FetcherBench):
    """Broker 1 leads; 2 is nearer by."""

    def __init__(self, **config: object) -> None:
        super().__init__({T0: 0}, None, client_rack="b", **config)
        for node_id in (2, 3):
            self.fetcher.metadata.brokers[node_id] = BrokerEndpoint(node_id, "localhost", 9092, "b")

    def advise(self, fetch: InFlightFetch, node_id: int = 2) -> None:
        part = PartitionData(
            partition_index=0, high_watermark=9, preferred_read_replica=node_id, aborted_transactions=None, records=b""
        )
        response = FetchResponse(responses=[FetchableTopicResponse(topic_id=ID, partitions=[part])])
        self.fetcher.on_answer(fetch, decode(FetchResponse, encode(response, 16), 16), self.now)

    def turned(self) -> InFlightFetch:
        """The first fetch of the replica that the leader named."""
        asked = self.fetch()
        assert (asked.node_id, asked.request.rack_id) == (1, "b")
        self.advise(asked)
        nearest = self.fetch()
        assert (nearest.node_id, offsets(nearest.request)) == (2, {0: 0})
        return nearest


def test_the_replica_that_is_named_is_read_from() -> None:
    bench = Racks()
    bench.answer(bench.turned(), {0: batch(0, b"a", b"b")})
    assert bench.values() == [b"a", b"b"]
    again = bench.fetch()
    assert (again.node_id, offsets(again.request)) == (2, {0: 2})


def test_the_leader_is_asked_again_when_metadata_would_be_old() -> None:
    bench = Racks()
    bench.answer(bench.turned())
    bench.now += AGE_MS - 1
    bench.answer(bench.fetch())
    bench.now += 1
    asked = bench.fetch()
    assert (asked.node_id, asked.request.rack_id) == (1, "b")


def test_another_leader_is_asked_where_to_read() -> None:
    bench = Racks()
    bench.answer(bench.turned())
    bench.fetcher.metadata.hint(T0, 3, 4)
    assert bench.fetch().node_id == 3


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_a_replica_that_refuses_is_left_for_the_leader_which_then_serves_itself(code: ErrorCode) -> None:
    """Also for an offset out of range: only the leader's word counts, and the position stays."""
    bench = Racks(auto_offset_reset="earliest")
    bench.answer(bench.turned(), codes={0: code})
    asked = bench.fetch()
    assert (asked.node_id, asked.request.rack_id, offsets(asked.request)) == (1, "", {0: 0})
    bench.answer(asked, {0: batch(0, b"a")})
    assert bench.values() == [b"a"], "and nothing was raised"
    bench.now += WARY_MS
    assert bench.fetch().request.rack_id == "b"


def test_the_leaders_own_refusal_counts() -> None:
    bench = Racks(auto_offset_reset="earliest")
    bench.answer(bench.turned(), codes={0: ErrorCode.OFFSET_OUT_OF_RANGE})
    bench.answer(bench.fetch(), codes={0: ErrorCode.OFFSET_OUT_OF_RANGE})
    assert [state.tp for state in bench.fetcher.unresolved()] == [T0]


def test_a_replica_that_dies_is_left_at_once_and_what_it_sent_stays() -> None:
    bench = Racks()
    bench.answer(bench.turned(), {0: batch(0, b"a")})
    bench.fetcher.on_failure(bench.fetch(), BrokerUnreachable("killed"), bench.now)
    asked = bench.fetch()
    assert (asked.node_id, asked.request.rack_id, offsets(asked.request)) == (1, "", {0: 1})
    assert bench.values() == [b"a"]


def test_a_replica_that_cannot_be_connected_to_is_left() -> None:
    bench = Racks()
    bench.advise(bench.fetch())

    def ready(node_id: int) -> bool:
        return node_id == 1

    assert bench.fetcher.next_fetches(bench.now, ready) == []
    assert bench.fetcher.on_unreachable(2, bench.now)
    (asked,) = bench.fetcher.next_fetches(bench.now, ready)
    assert (asked.node_id, asked.request.rack_id) == (1, "")
    assert not bench.fetcher.on_unreachable(1, bench.now), "a leader is waited for"


def test_a_replica_that_nobody_knows_is_not_turned_to() -> None:
    bench = Racks()
    bench.advise(bench.fetch(), node_id=77)
    assert bench.fetcher.metadata_wanted
    asked = bench.fetch()
    assert (asked.node_id, asked.request.rack_id) == (1, "")


def test_partitions_go_their_own_ways() -> None:
    bench = Racks()
    bench.fetcher.assign({T0: 0, T1: 0})
    bench.advise(bench.fetch())
    near, far = sorted(bench.fetches(), key=lambda fetch: -fetch.node_id)
    assert (near.node_id, offsets(near.request)) == (2, {0: 0})
    assert (far.node_id, offsets(far.request)) == (1, {1: 0})
