"""Fetch sessions (KIP-227): epochs, changes, news, order and eviction."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest

from barnabas.broker.replica.core.fetch_sessions import FetchSession, FetchSessions, PartitionKey, WantedPartition
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import BrokerError, ErrorCode


class Seeded:
    def __init__(self) -> None:
        self._random = random.Random(1)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> bytes:
        return self._random.randbytes(16)


class Cache:
    def __init__(self, slots: int = 3) -> None:
        self.ms = 0
        self.sessions = FetchSessions(Seeded(), lambda: self.ms, slots=slots, eviction_ms=1_000)


def wanted(*partitions: int, offset: int = 0) -> dict[PartitionKey, WantedPartition]:
    return {
        ("t", number): WantedPartition(("t", number), "t", bytes(16), number, offset, 1024, -1, -1)
        for number in partitions
    }


def create(cache: Cache, *partitions: int) -> FetchSession:
    session = cache.sessions.create(False, wanted(*partitions))
    assert session is not None
    return session


def test_a_session_goes_on_by_its_epoch_and_takes_changes_over() -> None:
    cache = Cache()
    session = create(cache, 0, 1)
    again = cache.sessions.resume(session.session_id, 1, False, wanted(1, 2, offset=7).items(), [("t", 0)])
    assert again is session
    assert {key[1]: one.fetch_offset for key, one in session.wanted.items()} == {1: 7, 2: 7}
    assert cache.sessions.resume(session.session_id, 2, False, (), ()) is session


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session_id": 12345}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"epoch": 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"epoch": 0x7FFF}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"by_id": True}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_what_does_not_fit_the_session_is_refused_and_changes_nothing(
    change: dict[str, int | bool], code: ErrorCode
) -> None:
    cache = Cache()
    session = create(cache, 0)
    request = {"session_id": session.session_id, "epoch": 1, "by_id": False} | change
    with pytest.raises(BrokerError) as refused:
        cache.sessions.resume(**request, changed=wanted(5).items(), forgotten=[("t", 0)])  # type: ignore[arg-type]  # built above
    assert refused.value.code == code
    assert list(session.wanted) == [("t", 0)]
    assert session.epoch == 1


def test_the_epoch_wraps_to_one() -> None:
    cache = Cache()
    session = create(cache, 0)
    session.epoch = 2**31 - 1
    assert cache.sessions.resume(session.session_id, 2**31 - 1, False, (), ()) is session
    assert session.epoch == 1


def test_a_session_without_partitions_ends() -> None:
    cache = Cache()
    session = create(cache, 0)
    assert cache.sessions.resume(session.session_id, 1, False, (), [("t", 0)]) is None
    assert len(cache.sessions) == 0


def test_news_are_records_errors_and_moved_bounds() -> None:
    one = wanted(0)["t", 0]
    assert one.has_news(0, 10, 0, records=False), "never told before"
    assert not one.has_news(0, 10, 0, records=False)
    assert one.has_news(0, 10, 0, records=True)
    assert one.has_news(0, 11, 0, records=False)
    assert one.has_news(0, 11, 3, records=False)
    assert one.has_news(6, -1, -1, records=False)
    assert one.has_news(6, -1, -1, records=False), "an error is told again and again"
    assert one.has_news(0, 11, 3, records=False), "and its end is news"
    assert not one.has_news(0, 11, 3, records=False)


def test_what_was_read_up_is_ready_no_more_and_what_was_not_goes_to_the_end() -> None:
    session = create(Cache(), 0, 1, 2)
    assert [key[1] for key in session.ready] == [0, 1, 2], "what is named is ready"
    session.wanted["t", 1].drained = True
    session.on_answered(session.wanted["t", 0])
    session.on_answered(session.wanted["t", 1])
    assert [key[1] for key in session.ready] == [2, 0]
    session.add(wanted(1).items())
    assert [key[1] for key in session.ready] == [2, 0, 1]


class Waits:
    def __init__(self) -> None:
        self.progress = 0
        self.answered = False

    def on_progress(self, replica: object) -> None:
        self.progress += 1

    def overtaken(self) -> None:
        self.answered = True


def test_the_next_request_of_a_session_and_its_end_answer_the_one_that_waits() -> None:
    cache = Cache()
    acts: list[Callable[[FetchSession], object]] = [
        lambda session: cache.sessions.resume(session.session_id, 1, False, (), ()),
        lambda session: cache.sessions.close(session.session_id),
    ]
    for act in acts:
        session = create(cache, 0)
        session.parked = waiting = Waits()
        with pytest.raises(BrokerError):
            cache.sessions.resume(session.session_id, 9, False, (), ())
        assert not waiting.answered
        act(session)
        assert waiting.answered


class Deleted:
    """A replica as its watchers see it."""

    def __init__(self) -> None:
        self.failed = False
        self.watchers: dict[object, None] = {}


def test_a_session_without_its_client_lets_a_deleted_partition_go() -> None:
    """A session may stay until 1,000 newer sessions exist. It must not keep the logs of deleted partitions."""
    one = create(Cache(), 0).wanted["t", 0]
    replica = Deleted()
    one.attach(cast(Replica, replica))
    one.watch()
    replica.failed = True
    one.on_progress(cast(Replica, replica))
    assert one.replica is None
    assert not replica.watchers


def test_a_full_cache_keeps_fresh_sessions_and_evicts_silent_ones() -> None:
    cache = Cache(slots=2)
    first, second = create(cache, 0), create(cache, 0)
    assert cache.sessions.create(False, wanted(0)) is None
    cache.ms = 900
    cache.sessions.resume(first.session_id, 1, False, (), ())
    cache.ms = 1_500
    third = create(cache, 0)  # the second is silent for over a second
    assert cache.sessions.resume(first.session_id, 2, False, (), ()) is first
    with pytest.raises(BrokerError):
        cache.sessions.resume(second.session_id, 1, False, (), ())
    assert cache.sessions.resume(third.session_id, 1, False, (), ()) is third


def test_a_larger_session_takes_the_place_of_a_smaller_older_one() -> None:
    cache = Cache(slots=2)
    small, large = create(cache, 0), create(cache, 0, 1, 2)
    cache.ms = 1_001
    for session in (small, large):
        cache.sessions.resume(session.session_id, 1, False, (), ())
    assert cache.sessions.create(False, wanted(0)) is None, "not larger than the smallest"
    assert cache.sessions.create(False, wanted(0, 1)) is not None
    with pytest.raises(BrokerError):
        cache.sessions.resume(small.session_id, 2, False, (), ())
    assert cache.sessions.resume(large.session_id, 2, False, (), ()) is large


def test_session_ids_are_positive_and_unique() -> None:
    cache = Cache(slots=500)
    ids = {create(cache, 0).session_id for _ in range(500)}
    assert len(ids) == 500
    assert all(0 < session_id < 2**31 for session_id in ids)


def test_when_a_follower_certainly_followed() -> None:
    """Its last two requests may have been sent before anything was answered."""
    cache = Cache()
    partitions = wanted(0)
    session = cache.sessions.create(False, partitions, 2)
    assert session is not None
    (partition,) = partitions.values()
    found = []
    for epoch in range(1, 5):
        cache.ms += 500
        assert cache.sessions.resume(session.session_id, epoch, False, (), ()) is session
        found.append(partition.followed_ms)
    assert found == [0, 0, 500, 1_000]
    session.forget(partition.key)
    assert partition.followed_ms < 0
