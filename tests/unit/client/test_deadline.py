"""Deadline: what a call says when its time has passed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client.errors import RequestTimedOut, error_for
from barnabas.client.net.deadline import Deadline
from barnabas.errors import ErrorCode


class Clock:
    """A clock that a test moves."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


async def test_the_last_refusal_is_told_if_the_last_attempt_had_no_answer() -> None:
    clock = Clock()
    cluster: Any = SimpleNamespace(
        clock=clock, rng=SimpleNamespace(random=lambda: 0.0), retry_backoff_ms=1, request_timeout_ms=100
    )
    deadline = Deadline(cluster, None)
    await deadline.pause(error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic"))
    clock.now_ms = 100
    with pytest.raises(RequestTimedOut, match="no such topic") as raised:
        await deadline.pause(RequestTimedOut("no answer in time"))
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_without_a_refusal_the_last_error_is_told() -> None:
    clock = Clock()
    cluster: Any = SimpleNamespace(
        clock=clock, rng=SimpleNamespace(random=lambda: 0.0), retry_backoff_ms=1, request_timeout_ms=100
    )
    clock.now_ms = 0
    deadline = Deadline(cluster, 50)
    clock.now_ms = 50
    with pytest.raises(RequestTimedOut, match="no answer in time"):
        await deadline.pause(RequestTimedOut("no answer in time"))
