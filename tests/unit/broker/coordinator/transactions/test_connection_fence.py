"""The connection fence: what is late, what is not its business, and that nobody starves or fills it."""

from __future__ import annotations

import pytest

from barnabas.broker.coordinator.transactions import connection_fence
from barnabas.broker.coordinator.transactions.connection_fence import ConnectionFence
from barnabas.errors import RemoteProtocolError

PRODUCER, EPOCH = 7, 3


def late(
    fence: ConnectionFence, connection: int, *, epoch: int = EPOCH, producer: int = PRODUCER, key: object = "a"
) -> bool:
    try:
        fence.check(key, producer, epoch, connection)
    except RemoteProtocolError:
        return True
    return False


def test_an_older_connection_is_late_once_a_newer_one_was_heard() -> None:
    fence = ConnectionFence()
    assert [late(fence, connection) for connection in (5, 5, 8, 5, 8, 9, 8)] == [
        False,
        False,
        False,
        True,
        False,
        False,
        True,
    ]


def test_a_client_with_several_connections_comes_back_over_a_new_one() -> None:
    fence = ConnectionFence()
    assert not late(fence, 1)
    assert not late(fence, 2)
    assert late(fence, 1)
    assert not late(fence, 3)
    assert late(fence, 2)


def test_another_epoch_is_told_by_its_epoch() -> None:
    """The producer that took over may have connected long before."""
    fence = ConnectionFence()
    assert not late(fence, 9)
    assert not late(fence, 4, epoch=EPOCH + 1)
    assert not late(fence, 9, epoch=EPOCH), "other rules refuse it"
    assert late(fence, 3, epoch=EPOCH + 1)


def test_another_producer_id_begins_anew() -> None:
    fence = ConnectionFence()
    assert not late(fence, 9)
    assert not late(fence, 4, producer=PRODUCER + 1, epoch=0)
    assert late(fence, 3, producer=PRODUCER + 1, epoch=0)


def test_each_coordinated_thing_has_a_fence_of_its_own() -> None:
    fence = ConnectionFence()
    assert not late(fence, 9)
    assert not late(fence, 4, key=("a", "group"))
    assert not late(fence, 4, key="b")


def test_who_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_fence, "FENCED_PRODUCERS_MAX", 2)
    fence = ConnectionFence()
    for key in ("a", "b", "a", "c"):
        assert not late(fence, 9, key=key)
    assert late(fence, 8, key="a")
    assert not late(fence, 8, key="b")
