"""Flow: what happens to the bytes of one direction of a link. A JSON value on its way to a broker.

The words are those of Toxiproxy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction.

    Attributes:
        cut: nothing arrives until the cut ends; then everything does, as TCP repeats it.
        latency_s: added to the time of each byte.
        jitter_s: the most that is added to or taken from the latency, drawn for each piece of data. Bytes stay in their order.
        bytes_per_s: 0: without limit.
        slow_close_s: a connection closes this much later.
        reset_s: connections are reset this long after they were made, or after this was written; -1: never.
        resets: how often `reset_s` was written: each time begins the wait anew.
        bytes_max: a connection closes after this many bytes; -1: without limit.
        slice_bytes: the data arrive in pieces of this size; 0: whole.
        slice_variation: the most that a piece is larger or smaller.
        slice_delay_s: between two pieces.
    """

    cut: bool = False
    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    slow_close_s: float = 0.0
    reset_s: float = -1.0
    resets: int = 0
    bytes_max: int = -1
    slice_bytes: int = 0
    slice_variation: int = 0
    slice_delay_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The flow as JSON value."""
        return asdict(self)


FREE: Final = Flow()


def merged(flows: Iterable[Flow]) -> Flow:
    """What several flows do together: delays add up, the smallest limit holds."""
    result = FREE
    for each in flows:
        result = each if result is FREE else _pair(result, each)
    return result


def _pair(one: Flow, two: Flow) -> Flow:
    sliced = min((each for each in (one, two) if each.slice_bytes), key=lambda each: each.slice_bytes, default=FREE)
    return Flow(
        cut=one.cut or two.cut,
        latency_s=one.latency_s + two.latency_s,
        jitter_s=one.jitter_s + two.jitter_s,
        bytes_per_s=min((each.bytes_per_s for each in (one, two) if each.bytes_per_s), default=0.0),
        slow_close_s=one.slow_close_s + two.slow_close_s,
        reset_s=min((each.reset_s for each in (one, two) if each.reset_s >= 0), default=-1.0),
        resets=one.resets + two.resets,
        bytes_max=min((each.bytes_max for each in (one, two) if each.bytes_max >= 0), default=-1),
        slice_bytes=sliced.slice_bytes,
        slice_variation=sliced.slice_variation,
        slice_delay_s=sliced.slice_delay_s,
    )
