"""BrokerSessions: heartbeats of brokers at the active controller (KIP-631), with the limits on probes and crash loops, which are ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.broker.image.image import BrokerImage
from barnabas.broker.peers.peer_error import ProbeResult

PROBE_FENCE_INTERVAL_MS: Final = 10_000  # between two fencings of one incarnation by probes
CRASH_WINDOW_MS: Final = 60_000  # earlier deaths do not count
CRASHES_FREE: Final = 3  # deaths within the window that cause no delay
CRASHES_MAX: Final = 16  # remembered for each broker
UNFENCE_DELAY_MS: Final = 500
UNFENCE_DELAY_MS_MAX: Final = 8_000
SHUTDOWN_PATIENCE_MS: Final = 500  # heartbeats are seconds apart, images spread in milliseconds
SILENCE_MS: Final = 1_000  # without a heartbeat, until an unreachable listener counts as closed
PAUSE_MS: Final = 50  # before the second probe, doubled by each further one up to
PAUSE_MS_MAX: Final = 200
ACCEPTED_PAUSE_MS_MAX: Final = 1_000  # if the listener accepts


class _Contact:
    """Heartbeats of one incarnation of a broker."""

    def __init__(self, broker_epoch: int, now_ms: int) -> None:
        self.broker_epoch = broker_epoch
        self.began_ms = now_ms
        self.last_ms = now_ms
        self.heard = False  # this controller received a heartbeat of this incarnation
        self.source: object | None = None  # connection of the last heartbeat; None: this process
        self.metadata_offset = -1
        self.shutdown_offset = -1  # offset of its controlled shutdown in the log, and its time
        self.shutdown_ms = 0


class BrokerSessions:
    """Sessions of brokers, while this controller is active; monotonic ms. A fenced broker has a contact but no session."""

    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.probe_fences = 0  # incarnations that this controller has fenced because of probes
        self._contacts: dict[int, _Contact] = {}
        self._probe_fenced: dict[int, tuple[int, int]] = {}  # by broker: epoch that a probe fenced last, and when
        self._died_ms: dict[int, list[int]] = {}  # by broker: its latest deaths, ascending

    # --- inputs ---------------------------------------------------------------------------------------------------

    def begin(self, brokers: Iterable[BrokerImage], now_ms: int) -> None:
        """Gives every broker a whole session."""
        self._contacts = {broker.broker_id: _Contact(broker.epoch, now_ms) for broker in brokers}

    def end(self) -> None:
        self._contacts.clear()

    def on_registered(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        contact = self._contacts.get(broker_id)
        if contact is None or contact.broker_epoch != broker_epoch:
            self._contacts[broker_id] = _Contact(broker_epoch, now_ms)
        else:
            contact.last_ms = now_ms

    def on_heartbeat(
        self, broker_id: int, broker_epoch: int, metadata_offset: int, source: object | None, now_ms: int
    ) -> None:
        """A heartbeat of a registered epoch arrived over `source` (None: this process)."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.broker_epoch != broker_epoch:
            contact = self._contacts[broker_id] = _Contact(broker_epoch, now_ms)
        contact.last_ms = now_ms
        contact.heard = True
        contact.source = source
        contact.metadata_offset = metadata_offset

    def on_closed(self, broker_id: int, source: object) -> int | None:
        """Returns the broker epoch to suspect, None if a newer connection is used."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.source is not source:
            return None
        contact.source = None
        contact.heard = False
        return contact.broker_epoch

    def on_shutting_down(self, broker_id: int, offset: int, now_ms: int) -> None:
        """The controlled shutdown was written at `offset`; the first one counts."""
        contact = self._contacts.get(broker_id)
        if contact is not None and contact.shutdown_offset < 0:
            contact.shutdown_offset, contact.shutdown_ms = offset, now_ms

    def on_expired(self, broker_id: int, now_ms: int) -> None:
        """Restarts the measurement, so that the same silence does not count twice."""
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.last_ms = now_ms

    def extend_sessions(self, stall_ms: int) -> None:
        """This process was suspended for `stall_ms` and could receive no heartbeats."""
        for contact in self._contacts.values():
            contact.last_ms += stall_ms

    def on_probe_fenced(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        self.probe_fences += 1
        self._probe_fenced[broker_id] = broker_epoch, now_ms
        self.on_died(broker_id, now_ms)

    def on_died(self, broker_id: int, now_ms: int) -> None:
        """An incarnation ended without a controlled shutdown."""
        self._died_ms[broker_id] = [*self._deaths(broker_id, now_ms), now_ms][-CRASHES_MAX:]

    # --- queries --------------------------------------------------------------------------------------------------

    def alive(self, broker_id: int, now_ms: int) -> bool:
        contact = self._contacts.get(broker_id)
        return contact is not None and now_ms - contact.last_ms <= self.session_timeout_ms

    def connected(self, broker_id: int) -> bool:
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.heard

    def probe_fence_in_ms(self, broker_id: int, broker_epoch: int, now_ms: int) -> int:
        """Time until a probe may fence this incarnation again; 0 if now."""
        fenced_epoch, last_ms = self._probe_fenced.get(broker_id, (-1, 0))
        return max(0, last_ms + PROBE_FENCE_INTERVAL_MS - now_ms) if fenced_epoch == broker_epoch else 0

    def unfence_in_ms(self, broker_id: int, now_ms: int) -> int:
        """Time until the broker may be unfenced; limits the elections that a crash loop causes.

        More than CRASHES_FREE deaths within CRASH_WINDOW_MS: UNFENCE_DELAY_MS from the registration, doubled up to UNFENCE_DELAY_MS_MAX.
        """
        contact = self._contacts.get(broker_id)
        too_many = len(self._deaths(broker_id, now_ms)) - CRASHES_FREE
        if contact is None or too_many <= 0:
            return 0
        delay_ms = min(UNFENCE_DELAY_MS << (too_many - 1), UNFENCE_DELAY_MS_MAX)
        return max(0, contact.began_ms + delay_ms - now_ms)

    def steady(self, broker_id: int, now_ms: int) -> bool:
        """Whether the broker died at most once recently and may get leaderships back at once, not only by the periodic balance."""
        return len(self._deaths(broker_id, now_ms)) <= 1

    def _deaths(self, broker_id: int, now_ms: int) -> list[int]:
        return [at_ms for at_ms in self._died_ms.get(broker_id, ()) if now_ms - at_ms < CRASH_WINDOW_MS]

    def expired(self, unfenced: Iterable[BrokerImage], now_ms: int) -> list[int]:
        """Unfenced brokers whose session has ended, the longest silent first."""
        silent = []
        for broker in unfenced:
            contact = self._contacts.get(broker.broker_id)
            if contact is not None and now_ms - contact.last_ms > self.session_timeout_ms:
                silent.append((contact.last_ms, broker.broker_id))
        return [broker_id for _, broker_id in sorted(silent)]

    def next_check_ms(self, unfenced: Iterable[BrokerImage]) -> int | None:
        """Earliest end of an unfenced broker's session; None without one."""
        times = [
            self._contacts[broker.broker_id].last_ms + self.session_timeout_ms + 1
            for broker in unfenced
            if broker.broker_id in self._contacts
        ]
        return min(times, default=None)

    def may_stop(self, broker_id: int, others: Iterable[BrokerImage], now_ms: int) -> bool:
        """Whether `others` have replayed the broker's controlled shutdown, or had SHUTDOWN_PATIENCE_MS to do so."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.shutdown_offset < 0:
            return True  # the controller changed since: the broker leads nothing, and all know it
        if now_ms - contact.shutdown_ms >= SHUTDOWN_PATIENCE_MS:
            return True
        known = [self._contacts.get(other.broker_id) for other in others]
        return all(other is not None and other.metadata_offset >= contact.shutdown_offset for other in known)


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
