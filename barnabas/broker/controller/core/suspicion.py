"""Suspicion: decides from probes of its listener whether one incarnation of a broker is dead."""

from __future__ import annotations

from typing import Final

from barnabas.broker.peers.peer_error import ProbeResult

SILENCE_MS: Final = 1_000  # without a heartbeat, until an unreachable listener counts as closed
PAUSE_MS: Final = 50  # before the second probe, doubled by each further one up to
PAUSE_MS_MAX: Final = 200
ACCEPTED_PAUSE_MS_MAX: Final = 1_000  # if the listener accepts


class Suspicion:
    """Probes of one incarnation after its heartbeat connection closed. Fencing a running broker is safe: its next heartbeat unfences it.

    A listener that accepts belongs to a running process: the session decides. Two failed probes in a row, one of them refused, prove a
    death: a broker's listener is open from before its registration until after its shutdown. Without a refusal the broker may only be
    unreachable from here; it is dead after SILENCE_MS without a heartbeat, because a running broker reconnects within milliseconds. A new
    controller has seen no connection close (`closed` is false) and always waits for SILENCE_MS.
    """

    def __init__(self, now_ms: int, *, closed: bool = True) -> None:
        self._began_ms = now_ms
        self._closed = closed
        self._not_accepted = 0  # probes in a row
        self._refused = False  # one of them was refused
        self._pause_ms = PAUSE_MS

    def is_dead(self, result: ProbeResult, now_ms: int, *, refused_too: bool = False) -> bool:
        """Returns whether to fence the broker. `refused_too`: another connection to the process was refused recently; counts as one more probe."""
        if result is ProbeResult.ACCEPTED:
            self._not_accepted, self._refused = 0, False
            return False
        self._not_accepted += 1
        self._refused = self._refused or refused_too or result is ProbeResult.REFUSED
        silent = now_ms - self._began_ms >= SILENCE_MS
        return self._not_accepted + refused_too > 1 and (silent or (self._refused and self._closed))

    def next_pause_ms(self) -> int:
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, PAUSE_MS_MAX if self._not_accepted else ACCEPTED_PAUSE_MS_MAX)
        return min(pause_ms, PAUSE_MS_MAX) if self._not_accepted else pause_ms
