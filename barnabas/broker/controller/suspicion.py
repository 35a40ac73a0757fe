"""Suspicion: decides from probes of its listener whether one incarnation of a broker is dead.

Pure. Driven by: results of probes, in the order of the probes. Emits: the verdict, and the pause before the next probe.

A listener that accepts belongs to a process that exists: the session decides. If at least two probes in a row are not accepted and
one of them is refused, the broker is dead: a broker opens its listener before it registers and closes it after its shutdown, so a
machine that refuses has no such process. Without a refusal (no route, no such name, no answer in time) the broker may only be
unreachable from this node. It is dead if it sends no heartbeat over another connection within SILENCE_MS after its connection was
closed: a running broker reconnects within milliseconds. A new controller has seen no connection close: it waits for SILENCE_MS in any case.

Fencing a running broker is safe: it costs leaderships but no records, and its next heartbeat unfences it.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.peers.probe_result import ProbeResult

SILENCE_MS: Final = 1_000  # without a heartbeat, until an unreachable listener counts as closed
PAUSE_MS: Final = 50  # before the second probe, doubled by each further one up to
PAUSE_MS_MAX: Final = 200
ACCEPTED_PAUSE_MS_MAX: Final = 1_000  # if the listener accepts


class Suspicion:
    """The probes of one incarnation since its heartbeat connection was closed.

    Args:
        now_ms: monotonic time of the beginning of the suspicion.
        closed: whether a connection with the broker was closed then.
    """

    def __init__(self, now_ms: int, *, closed: bool = True) -> None:
        self._began_ms = now_ms
        self._closed = closed
        self._not_accepted = 0  # probes in a row
        self._refused = False  # one of them was refused
        self._pause_ms = PAUSE_MS

    def is_dead(self, result: ProbeResult, now_ms: int, *, refused_too: bool = False) -> bool:
        """Counts the result of a probe; returns whether to fence the broker.

        Args:
            refused_too: whether another connection of this node to the same process was refused recently; counts as one more probe.
        """
        if result is ProbeResult.ACCEPTED:
            self._not_accepted, self._refused = 0, False
            return False
        self._not_accepted += 1
        self._refused = self._refused or refused_too or result is ProbeResult.REFUSED
        silent = now_ms - self._began_ms >= SILENCE_MS
        return self._not_accepted + refused_too > 1 and (silent or (self._refused and self._closed))

    def next_pause_ms(self) -> int:
        """Time to wait before the next probe."""
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, PAUSE_MS_MAX if self._not_accepted else ACCEPTED_PAUSE_MS_MAX)
        return min(pause_ms, PAUSE_MS_MAX) if self._not_accepted else pause_ms
