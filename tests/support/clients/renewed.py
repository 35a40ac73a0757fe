"""A producer whose sessions end again and again while it sends."""

from __future__ import annotations

import time
from typing import Any

from barnabas.client import Producer

TURNS_MAX = 8
STALL = 0.02  # of a session's lifetime: the client renews it in its last tenth


async def sends_through_renewals(topic: str, lifetime_s: float, seconds: float, **settings: Any) -> None:
    """Sends records all the time: they arrive once and in order, over the same connections.

    A broker closes a connection if the renewal of its session comes too late. If the client or the broker stood still, all is repeated.
    """
    for turn in range(TURNS_MAX):
        name = f"{topic}-{turn}"
        async with Producer(**settings, linger_ms=0) as producer:
            offsets = [(await producer.send_and_wait(name, b"first")).offset]
            opened = [connection.ready_ms for connection in producer._cluster.connections()]
            longest_s, until = 0.0, time.monotonic() + seconds
            while (began := time.monotonic()) < until:
                sent = [await producer.send(name, b"x") for _ in range(20)]
                offsets += [(await each).offset for each in sent]
                longest_s = max(longest_s, time.monotonic() - began)
            kept = [connection.ready_ms for connection in producer._cluster.connections()] == opened
        assert offsets == list(range(len(offsets)))
        if kept:
            return
        assert longest_s > STALL * lifetime_s, (
            f"a connection was closed, and no answer took longer than {longest_s:.3f} s"
        )
    raise AssertionError(f"a connection was closed in each of {TURNS_MAX} turns")
