"""Fetch: bounds of an answer, waits, sessions on the wire, isolation, epochs and ids."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from types import GeneratorType
from typing import Any

import pytest

from barnabas.broker.api.call import Call, Pending
from barnabas.broker.handlers.fetch import LARGE, PARTITIONS_A_YIELD, fetch
from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import DeleteTopicsRequest
from barnabas.protocol.messages.fetch import ForgottenTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.work import finished
from tests.support.broker.calls import Connection
from tests.support.broker.fetches import follower, offsets, parts, request, wanted
from tests.support.broker.nodes import Peer, batch
from tests.support.waiting import until

Another = Callable[[], Awaitable[Peer]]


@pytest.fixture(autouse=True, params=["reads at once", "long reads"])
def long_reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests run a second time with reads that are loaded in slices, and partitions that are read in several turns."""
    if request.param == "long reads":
        monkeypatch.setattr("barnabas.storage.tail.TAIL_BATCH_BYTES_MAX", 0)
        monkeypatch.setattr("barnabas.storage.long_reads._PIECE_BYTES", 64)
        for module in ("barnabas.broker.handlers.fetch", "barnabas.storage.segment"):
            monkeypatch.setattr(f"{module}.READ_BYTES_MAX", 100)


async def produce(peer: Peer, partition: int, *values: bytes, topic: str = "t") -> int:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch(*values))])
    answer = await peer.call(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data]), 9)
    (one,) = answer.responses[0].partition_responses
    assert one.error_code == 0
    return one.base_offset  # type: ignore[no-any-return]  # decoded


@pytest.mark.parametrize("version", range(4, 13))
async def test_every_version_by_name(peer: Peer, version: int) -> None:
    await peer.create("t")
    await produce(peer, 0, b"a")
    await produce(peer, 0, b"b")
    (part,) = parts(await peer.call(request(wanted(0, 1)), version))
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 2, 2)
    assert offsets(part) == [1]
    assert part.aborted_transactions is None


@pytest.mark.parametrize("version", range(13, 19))
async def test_every_version_by_id(peer: Peer, node: Node, version: int) -> None:
    await peer.create("t")
    await produce(peer, 0, b"a")
    topic_id = node.replicas.leader("t", 0).topic_id
    response = await peer.call(request(wanted(0), topic_id=topic_id), version)
    assert response.responses[0].topic_id == topic_id
    assert offsets(parts(response)[0]) == [0]
    (unknown,) = parts(await peer.call(request(wanted(0), topic_id=bytes(range(16))), version))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_an_offset_inside_a_batch_brings_the_whole_batch(peer: Peer) -> None:
    await peer.create("t")
    await produce(peer, 0, b"a", b"b", b"c")
    (part,) = parts(await peer.call(request(wanted(0, 2)), 11))
    assert offsets(part) == [0]


@pytest.mark.parametrize("offset", [-1, 4, 2**62])
async def test_offsets_that_are_not_there(peer: Peer, offset: int) -> None:
    await peer.create("t")
    await produce(peer, 0, b"a", b"b", b"c")
    (part,) = parts(await peer.call(request(wanted(0, offset), max_wait_ms=60_000), 11))
    assert (part.error_code, part.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_a_leader_whose_session_may_be_over_does_not_say_that_an_offset_is_out_of_range(
    peer: Peer, node: Node
) -> None:
    """The next leader may have this offset. OFFSET_OUT_OF_RANGE would send a consumer back to the beginning."""
    await peer.create("t")
    await produce(peer, 0, b"a", b"b", b"c")
    replica = node.replicas.leader("t", 0)
    replica._followed_since_ms = lambda: 0
    replica.in_sync.maximal = (node.node_id, 99)  # another broker can be elected
    for asked in (wanted(0, 4), wanted(0, 1, last_fetched_epoch=replica.leader_epoch + 1)):
        (part,) = parts(await peer.call(request(asked), 12))
        assert (part.error_code, part.high_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    (part,) = parts(await peer.call(request(wanted(0, 1)), 12))
    assert (part.error_code, offsets(part)) == (0, [0]), "what it has was committed"
    replica._followed_since_ms = lambda: None
    (part,) = parts(await peer.call(request(wanted(0, 4)), 12))
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_limits_bound_the_answer_but_never_to_nothing(peer: Peer) -> None:
    await peer.create("t", 3)
    for partition in range(3):
        for _ in range(4):
            await produce(peer, partition, b"x" * 1000)
    every = (wanted(0), wanted(1), wanted(2))
    assert [len(offsets(part)) for part in parts(await peer.call(request(*every), 11))] == [4, 4, 4]
    assert [len(offsets(part)) for part in parts(await peer.call(request(*every, max_bytes=1), 11))] == [1, 0, 0]
    by_partition = await peer.call(request(wanted(0, max_bytes=2_200), wanted(1, max_bytes=1), wanted(2)), 11)
    assert [len(offsets(part)) for part in parts(by_partition)] == [2, 0, 4]
    whole = await peer.call(request(*every, max_bytes=5_500), 11)
    assert [len(offsets(part)) for part in parts(whole)] == [4, 1, 0]


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_nothing_to_read_waits_for_max_wait(peer: Peer) -> None:
    await peer.create("t")
    began = time.monotonic()
    (part,) = parts(await peer.call(request(wanted(0), max_wait_ms=100), 11))
    assert time.monotonic() - began >= 0.095  # timers count whole milliseconds
    assert (part.error_code, part.records) == (0, b"")


async def test_a_record_ends_the_wait(peer: Peer, another: Another) -> None:
    await peer.create("t", 2)
    waiting = peer.send(request(wanted(0), wanted(1), max_wait_ms=60_000), 11)
    await produce(await another(), 1, b"x")
    response = await peer.receive(waiting)
    assert [offsets(part) for part in parts(response)] == [[], [0]]


async def test_min_bytes_are_counted_over_partitions(peer: Peer, another: Another, node: Node) -> None:
    await peer.create("t", 2)
    writer = await another()
    await produce(writer, 0, b"x" * 1000)
    waiting = peer.send(request(wanted(0), wanted(1), max_wait_ms=60_000, min_bytes=3_000), 11)
    await produce(writer, 1, b"x" * 1000)
    await produce(writer, 0, b"x" * 100)
    assert [one.core.waits for one in node.server.connections].count(True) == 1
    await produce(writer, 1, b"x" * 1000)
    first, second = parts(
        await peer.receive(waiting)
    )  # a long read of the first may have begun before its second batch
    assert len(offsets(second)) == 2
    assert len(first.records) + len(second.records) >= 3_000


async def test_a_deleted_topic_ends_the_wait(peer: Peer, another: Another, node: Node) -> None:
    await peer.create("t")
    waiting = peer.send(request(wanted(0), max_wait_ms=60_000), 11)
    replica = node.replicas.leader("t", 0)
    await until(lambda: replica.watchers)
    await (await another()).call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 3)
    (part,) = parts(await peer.receive(waiting))
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_answers_keep_their_order_behind_a_wait_that_blocks_no_effect(peer: Peer, another: Another) -> None:
    await peer.create("t")
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch(b"x"))])
    fetching = peer.send(request(wanted(0), max_wait_ms=60_000), 11)
    producing = peer.send(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data]), 9)
    fetched = await peer.receive(fetching)  # ended by the request behind it
    produced = await peer.receive(producing)
    assert offsets(parts(fetched)[0]) == [0]
    assert produced.responses[0].partition_responses[0].base_offset == 0


async def test_a_closed_connection_watches_no_more(peer: Peer, another: Another, node: Node) -> None:
    await peer.create("t")
    peer.send(request(wanted(0), max_wait_ms=60_000), 11)
    replica = node.replicas.leader("t", 0)
    await until(lambda: replica.watchers)
    peer.writer.close()
    await until(lambda: not replica.watchers)
    assert await produce(await another(), 0, b"x") == 0


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_a_session_answers_only_news(peer: Peer) -> None:
    await peer.create("t", 3)
    for partition in range(3):
        await produce(peer, partition, b"a")
    first = await peer.call(request(wanted(0), wanted(1), wanted(2), session_epoch=0), 11)
    assert first.session_id > 0
    assert len(parts(first)) == 3
    here = {"session_id": first.session_id, "min_bytes": 0}
    everything_read = [wanted(n, 1) for n in range(3)]
    assert parts(await peer.call(request(*everything_read, session_epoch=1, **here), 11)) == []
    await produce(peer, 2, b"b")
    (news,) = parts(await peer.call(request(session_epoch=2, **here), 11))
    assert (news.partition_index, offsets(news)) == (2, [1])
    # not acknowledged by a new fetch offset: it comes again
    (again,) = parts(await peer.call(request(session_epoch=3, **here), 11))
    assert offsets(again) == [1]
    forgotten = [ForgottenTopic(topic="t", partitions=[2])]
    assert parts(await peer.call(request(session_epoch=4, forgotten_topics_data=forgotten, **here), 11)) == []


async def test_a_session_waits_and_is_woken(peer: Peer, another: Another) -> None:
    await peer.create("t", 2)
    first = await peer.call(request(wanted(0), wanted(1), session_epoch=0), 11)
    waiting = peer.send(request(session_id=first.session_id, session_epoch=1, max_wait_ms=60_000), 11)
    await produce(await another(), 1, b"x")
    (news,) = parts(await peer.receive(waiting))
    assert (news.partition_index, offsets(news)) == (1, [0])


async def test_an_append_between_two_slices_of_a_request_keeps_the_partition_ready(peer: Peer, node: Node) -> None:
    """Of many partitions some were read before the append and are answered after it."""
    many = LARGE + 1
    await peer.create("t", many)
    await produce(peer, many - 1, b"a")
    first = request(*(wanted(partition) for partition in range(many)), session_epoch=0)
    work = fetch(node, Call(first, 11, 1, None, Connection(), ""))
    assert isinstance(work, GeneratorType)
    assert PARTITIONS_A_YIELD in work, "the first partitions are read"
    node.replicas.leader("t", 0).append(batch(b"b"))
    response = finished(work)
    assert [len(offsets(part)) for part in parts(response)] == [0] * (many - 1) + [1]
    again = await peer.call(request(session_id=response.session_id, session_epoch=1, min_bytes=0), 11)
    assert {part.partition_index: offsets(part) for part in parts(again) if part.records} == {0: [0], many - 1: [0]}


async def test_an_append_between_two_slices_of_a_request_ends_its_wait(peer: Peer, node: Node) -> None:
    many = LARGE + 1
    await peer.create("t", many)
    await until(lambda: all(node.replicas.get("t", number) is not None for number in range(many)))
    sent = request(*(wanted(partition) for partition in range(many)), max_wait_ms=60_000)
    work = fetch(node, Call(sent, 11, 1, None, Connection(), ""))
    assert isinstance(work, GeneratorType)
    assert PARTITIONS_A_YIELD in work, "the first partitions are read"
    node.replicas.leader("t", 0).append(batch(b"b"))
    pending = finished(work)
    assert isinstance(pending, Pending)
    await until(lambda: pending.resolved)


async def test_many_bytes_are_read_in_several_turns(
    peer: Peer, node: Node, monkeypatch: pytest.MonkeyPatch, long_reads: None
) -> None:
    """One long batch, and partitions that are long together."""
    monkeypatch.setattr("barnabas.broker.handlers.fetch.READ_BYTES_MAX", 3_000)
    monkeypatch.setattr("barnabas.storage.segment.READ_BYTES_MAX", 3_000)
    await peer.create("t", 4)
    for partition, size in enumerate((20_000, 2_000, 2_000, 2_000)):
        await produce(peer, partition, bytes(size))

    def answered(*partitions: int) -> Any:
        return fetch(node, Call(request(*map(wanted, partitions)), 11, 1, None, Connection(), ""))

    for partitions in ((0,), (1, 2, 3)):
        assert len(list(answered(*partitions))) > 1
        assert [offsets(part) for part in parts(finished(answered(*partitions)))] == [[0]] * len(partitions)
    assert [offsets(part) for part in parts(answered(1, 2))] == [[0]] * 2


async def test_sessions_that_are_not_there(peer: Peer) -> None:
    await peer.create("t")
    first = await peer.call(request(wanted(0), session_epoch=0), 11)
    wrong = await peer.call(request(session_id=first.session_id, session_epoch=7), 11)
    assert (wrong.error_code, wrong.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    none = await peer.call(request(session_id=first.session_id + 1, session_epoch=1), 11)
    assert none.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    closing = await peer.call(request(wanted(0), session_id=first.session_id, session_epoch=-1), 11)
    assert (closing.error_code, closing.session_id, len(parts(closing))) == (0, 0, 1)
    gone = await peer.call(request(session_id=first.session_id, session_epoch=1), 11)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# -- isolation and epochs ----------------------------------------------------------------------------------------------


async def test_read_committed_ends_at_the_last_stable_offset(peer: Peer, another: Another, node: Node) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    await produce(peer, 0, b"plain")
    for sequence in range(2):
        guard = replica.verification_guard(7, 0, sequence)
        replica.append(
            bytearray(batch(b"x", producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)),
            guard=guard,
        )
    await produce(peer, 0, b"plain")
    (open_part,) = parts(await peer.call(request(wanted(0), isolation_level=1), 11))
    assert (open_part.high_watermark, open_part.last_stable_offset) == (4, 1)
    assert (offsets(open_part), open_part.aborted_transactions) == ([0], [])
    (uncommitted,) = parts(await peer.call(request(wanted(0)), 11))
    assert offsets(uncommitted) == [0, 1, 2, 3]
    reader = await another()  # one that stands at the last stable offset is woken by the marker
    sent = reader.send(request(wanted(0, 1), isolation_level=1, max_wait_ms=60_000), 11)
    await until(lambda: replica.watchers)
    replica.append_marker(7, 0, commit=False, coordinator_epoch=0, transaction_version=1)
    (closed,) = parts(await reader.receive(sent))
    assert (closed.last_stable_offset, offsets(closed)) == (5, [1, 2, 3, 4])
    assert [(one.producer_id, one.first_offset) for one in closed.aborted_transactions] == [(7, 1)]


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, 0), (0, ErrorCode.FENCED_LEADER_EPOCH), (99, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
async def test_the_clients_leader_epoch_is_checked(peer: Peer, node: Node, epoch: int, code: int) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    replica.lead(replica.leader_epoch + 1, (1,), 1)
    (part,) = parts(await peer.call(request(wanted(0, current_leader_epoch=epoch)), 11))
    assert part.error_code == code
    (now,) = parts(await peer.call(request(wanted(0, current_leader_epoch=replica.leader_epoch)), 11))
    assert now.error_code == 0


async def test_a_diverging_epoch_is_told_at_once(peer: Peer, node: Node) -> None:
    """KIP-595: the last epoch the reader saw ends earlier here."""
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    first_epoch = replica.leader_epoch
    await produce(peer, 0, b"a")
    replica.lead(first_epoch + 2, (1,), 1)
    await produce(peer, 0, b"b")
    (fine,) = parts(await peer.call(request(wanted(0, 1, last_fetched_epoch=first_epoch)), 12))
    assert (fine.diverging_epoch.epoch, offsets(fine)) == (-1, [1])
    asked = wanted(0, 2, last_fetched_epoch=first_epoch)
    (part,) = parts(await peer.call(request(asked, max_wait_ms=60_000), 12))
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset, offsets(part)) == (first_epoch, 1, [])


async def test_refusals_name_the_leader(peer: Peer, node: Node) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    replica.follow(1000, replica.leader_epoch + 1, (1000,), 1)
    asked = wanted(0, current_leader_epoch=replica.leader_epoch - 1)
    response = await peer.call(request(asked, topic_id=replica.topic_id), 16)
    (part,) = parts(response)
    assert part.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert part.current_leader.leader_id == 1, "as the image has it"
    assert [endpoint.node_id for endpoint in response.node_endpoints] == [1]


async def lead_with_followers(node: Node, peer: Peer, *, isr: tuple[int, ...] = (1, 2)) -> Replica:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    replica.lead(replica.leader_epoch, isr, replica.partition_epoch + 1, replicas=(1, 2, 3))
    return replica


async def test_a_followers_fetch_acknowledges_and_its_answer_carries_what_follows(
    peer: Peer, node: Node, another: Another
) -> None:
    replica = await lead_with_followers(node, peer)
    replica.append(batch(b"a"))
    replica.append(batch(b"b"))
    assert replica.high_watermark == 0
    one = await another()
    (part,) = parts(await one.call(follower(wanted(0), topic_id=replica.topic_id), 17))
    assert (part.error_code, part.high_watermark, offsets(part)) == (0, 0, [0, 1]), "beyond the high watermark"
    (part,) = parts(await one.call(follower(wanted(0, 2), topic_id=replica.topic_id), 17))
    assert (part.high_watermark, part.records) == (2, b"")
    assert replica.high_watermark == 2


async def test_acks_all_waits_for_the_follower(peer: Peer, node: Node, another: Another) -> None:
    replica = await lead_with_followers(node, peer)
    one = await another()
    produced = peer.send(
        ProduceRequest(
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch(b"a"))])
            ],
        ),
        9,
    )
    await until(lambda: replica.log.log_end_offset == 1)
    await one.call(follower(wanted(0, 1), topic_id=replica.topic_id), 17)
    answer = await peer.receive(produced)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def test_a_follower_that_is_none_or_of_a_former_life_is_refused(peer: Peer, node: Node) -> None:
    replica = await lead_with_followers(node, peer)
    (part,) = parts(await peer.call(follower(wanted(0), topic_id=replica.topic_id, broker_id=9), 17))
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (part,) = parts(await peer.call(follower(wanted(0, 5), topic_id=replica.topic_id), 17))
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert replica.in_sync.followers[2].log_end_offset == -1, "what it cannot hold is no acknowledgement"


async def test_a_followers_next_request_answers_the_one_that_waits(peer: Peer, node: Node, another: Another) -> None:
    replica = await lead_with_followers(node, peer)
    one = await another()
    ids: dict[str, Any] = {"topic_id": replica.topic_id}
    opened = await one.call(follower(wanted(0), session_epoch=0, **ids), 17)
    waiting = one.send(follower(session_id=opened.session_id, session_epoch=1, max_wait_ms=60_000), 17)
    assert opened.session_id > 0
    replica.append(batch(b"a"))
    answer = await one.receive(waiting)
    assert [offsets(part) for part in parts(answer)] == [[0]]
    waiting = one.send(
        follower(wanted(0, 1), session_id=opened.session_id, session_epoch=2, max_wait_ms=60_000, **ids), 17
    )
    overtaking = one.send(follower(session_id=opened.session_id, session_epoch=3, max_wait_ms=60_000), 17)
    (part,) = parts(await one.receive(waiting))
    assert (part.high_watermark, part.records) == (1, b"")
    replica.append(batch(b"b"))
    assert [offsets(part) for part in parts(await one.receive(overtaking))] == [[1]]


async def test_a_follower_that_had_everything_is_in_sync_while_nothing_names_its_partition(
    peer: Peer, node: Node, another: Another
) -> None:
    replica = await lead_with_followers(node, peer)
    one = await another()
    opened = await one.call(follower(wanted(0), session_epoch=0, topic_id=replica.topic_id), 17)
    seen = replica.in_sync.followers[2]
    seen.last_caught_up_ms = before = node.reactor.clock.monotonic_ms() - 100_000
    await one.call(follower(session_id=opened.session_id, session_epoch=1), 17)
    assert seen.last_caught_up_ms == before
    replica.append(batch(b"a"))
    assert seen.last_caught_up_ms > before + 50_000


async def test_a_diverging_follower_is_told_where_and_acknowledges_nothing(peer: Peer, node: Node) -> None:
    replica = await lead_with_followers(node, peer)
    replica.append(batch(b"a"))
    ids: dict[str, Any] = {"topic_id": replica.topic_id}
    first = replica.leader_epoch
    replica.lead(first + 2, (1, 2), replica.partition_epoch + 1, replicas=(1, 2, 3))
    replica.append(batch(b"b"))
    (part,) = parts(await peer.call(follower(wanted(0, 2, last_fetched_epoch=first), **ids), 17))
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (first, 1)
    assert replica.in_sync.followers[2].log_end_offset == -1
