"""BrokerSessions: the active controller's record of broker heartbeats; tells which sessions have ended.

Pure: its inputs are heartbeats, closed connections, deaths and the monotonic clock. Emits: which sessions are over, when a broker may be
probed or unfenced, and when to check again. `liveness.py` is its shell, `heartbeats.py` uses it for decisions.

A broker's session lasts broker.session.timeout.ms from its last heartbeat. A killed process closes its connections at once, so
a closed heartbeat connection is a suspicion: `liveness.py` probes the broker's listener. A probe fences one incarnation of a broker
at most once in PROBE_FENCE_INTERVAL_MS. A broker that has registered again is a new incarnation and may be fenced at once.

Each crash of a broker that crashes repeatedly delays its unfencing more: after CRASHES_FREE deaths within CRASH_WINDOW_MS it waits
UNFENCE_DELAY_MS from its registration, doubled by each further death up to UNFENCE_DELAY_MS_MAX. This limits the elections that such
a broker causes. Only the periodic leader balance gives it leaderships back (`steady`).

Invariants: sessions exist only while this controller is active; a fenced broker has a contact but no session.
Follows KIP-631; the probes and the delays are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.broker.image.image import BrokerImage

PROBE_FENCE_INTERVAL_MS: Final = 10_000  # between two fencings of one incarnation by probes
CRASH_WINDOW_MS: Final = 60_000  # earlier deaths do not count
CRASHES_FREE: Final = 3  # deaths within the window that cause no delay
CRASHES_MAX: Final = 16  # remembered for each broker
UNFENCE_DELAY_MS: Final = 500
UNFENCE_DELAY_MS_MAX: Final = 8_000
SHUTDOWN_PATIENCE_MS: Final = 500  # heartbeats are seconds apart, images spread in milliseconds


class _Contact:
    """The heartbeats of one incarnation of a broker."""

    __slots__ = (
        "began_ms",
        "broker_epoch",
        "heard",
        "last_ms",
        "metadata_offset",
        "shutdown_ms",
        "shutdown_offset",
        "source",
    )

    def __init__(self, broker_epoch: int, now_ms: int) -> None:
        self.broker_epoch = broker_epoch
        self.began_ms = now_ms
        self.last_ms = now_ms
        self.heard = False  # this controller received a heartbeat of this incarnation
        self.source: object | None = None  # the connection of the last heartbeat; None: from this process
        self.metadata_offset = -1
        self.shutdown_offset = -1  # offset of its controlled shutdown in the log, and its time
        self.shutdown_ms = 0


class BrokerSessions:
    """Sessions of brokers. All times are monotonic milliseconds.

    Attributes:
        probe_fences: incarnations that this controller has fenced because of probes.
    """

    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.probe_fences = 0
        self._contacts: dict[int, _Contact] = {}
        self._probe_fenced: dict[int, tuple[int, int]] = {}  # by broker: epoch that a probe fenced last, and when
        self._died_ms: dict[int, list[int]] = {}  # by broker: its latest deaths, ascending

    # --- inputs ---------------------------------------------------------------------------------------------------

    def begin(self, brokers: Iterable[BrokerImage], now_ms: int) -> None:
        """This controller becomes active: every broker gets a whole session from now."""
        self._contacts = {broker.broker_id: _Contact(broker.epoch, now_ms) for broker in brokers}

    def end(self) -> None:
        """This node is no longer the controller."""
        self._contacts.clear()

    def on_registered(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A broker registered; a new epoch is a new incarnation."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.broker_epoch != broker_epoch:
            self._contacts[broker_id] = _Contact(broker_epoch, now_ms)
        else:
            contact.last_ms = now_ms

    def on_heartbeat(
        self, broker_id: int, broker_epoch: int, metadata_offset: int, source: object | None, now_ms: int
    ) -> None:
        """A heartbeat of a registered epoch arrived over the connection `source` (None: within this process)."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.broker_epoch != broker_epoch:
            contact = self._contacts[broker_id] = _Contact(broker_epoch, now_ms)
        contact.last_ms = now_ms
        contact.heard = True
        contact.source = source
        contact.metadata_offset = metadata_offset

    def on_closed(self, broker_id: int, source: object) -> int | None:
        """A heartbeat connection closed. Returns the broker epoch to suspect, None if a newer connection is used."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.source is not source:
            return None
        contact.source = None
        contact.heard = False
        return contact.broker_epoch

    def on_shutting_down(self, broker_id: int, offset: int, now_ms: int) -> None:
        """The broker's controlled shutdown was written at `offset`; the first one counts."""
        contact = self._contacts.get(broker_id)
        if contact is not None and contact.shutdown_offset < 0:
            contact.shutdown_offset, contact.shutdown_ms = offset, now_ms

    def on_expired(self, broker_id: int, now_ms: int) -> None:
        """A broker is being fenced for its silence: restarts the measurement, so that the same silence does not count twice."""
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.last_ms = now_ms

    def extend_sessions(self, stall_ms: int) -> None:
        """Extends every session by `stall_ms`: this process was suspended and could receive no heartbeats."""
        for contact in self._contacts.values():
            contact.last_ms += stall_ms

    def on_probe_fenced(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """An incarnation is being fenced because nothing accepts connections at its listener."""
        self.probe_fences += 1
        self._probe_fenced[broker_id] = broker_epoch, now_ms
        self.on_died(broker_id, now_ms)

    def on_died(self, broker_id: int, now_ms: int) -> None:
        """An incarnation ended without a controlled shutdown."""
        self._died_ms[broker_id] = [*self._deaths(broker_id, now_ms), now_ms][-CRASHES_MAX:]

    # --- queries --------------------------------------------------------------------------------------------------

    def alive(self, broker_id: int, now_ms: int) -> bool:
        """Whether the broker's session has not ended."""
        contact = self._contacts.get(broker_id)
        return contact is not None and now_ms - contact.last_ms <= self.session_timeout_ms

    def connected(self, broker_id: int) -> bool:
        """Whether the connection of the last heartbeat to this controller is open."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.heard

    def probe_fence_in_ms(self, broker_id: int, broker_epoch: int, now_ms: int) -> int:
        """Time until a probe may fence this incarnation again; 0 if now."""
        fenced_epoch, last_ms = self._probe_fenced.get(broker_id, (-1, 0))
        return max(0, last_ms + PROBE_FENCE_INTERVAL_MS - now_ms) if fenced_epoch == broker_epoch else 0

    def unfence_in_ms(self, broker_id: int, now_ms: int) -> int:
        """Time until the broker may be unfenced; more than 0 only after more than CRASHES_FREE recent deaths."""
        contact = self._contacts.get(broker_id)
        too_many = len(self._deaths(broker_id, now_ms)) - CRASHES_FREE
        if contact is None or too_many <= 0:
            return 0
        delay_ms = min(UNFENCE_DELAY_MS << (too_many - 1), UNFENCE_DELAY_MS_MAX)
        return max(0, contact.began_ms + delay_ms - now_ms)

    def steady(self, broker_id: int, now_ms: int) -> bool:
        """Whether the broker died at most once recently, so that leaderships may return to it at once."""
        return len(self._deaths(broker_id, now_ms)) <= 1

    def _deaths(self, broker_id: int, now_ms: int) -> list[int]:
        return [at_ms for at_ms in self._died_ms.get(broker_id, ()) if now_ms - at_ms < CRASH_WINDOW_MS]

    def expired(self, unfenced: Iterable[BrokerImage], now_ms: int) -> list[int]:
        """Unfenced brokers that were silent for longer than a session, longest first."""
        silent = []
        for broker in unfenced:
            contact = self._contacts.get(broker.broker_id)
            if contact is not None and now_ms - contact.last_ms > self.session_timeout_ms:
                silent.append((contact.last_ms, broker.broker_id))
        return [broker_id for _, broker_id in sorted(silent)]

    def next_check_ms(self, unfenced: Iterable[BrokerImage]) -> int | None:
        """Earliest end of the session of an unfenced broker; None without one."""
        times = [
            self._contacts[broker.broker_id].last_ms + self.session_timeout_ms + 1
            for broker in unfenced
            if broker.broker_id in self._contacts
        ]
        return min(times, default=None)

    def may_stop(self, broker_id: int, others: Iterable[BrokerImage], now_ms: int) -> bool:
        """Whether the `others` have replayed the broker's controlled shutdown, or had SHUTDOWN_PATIENCE_MS to do so."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.shutdown_offset < 0:
            return True  # the controller changed since: the broker leads nothing, and all know it
        if now_ms - contact.shutdown_ms >= SHUTDOWN_PATIENCE_MS:
            return True
        known = [self._contacts.get(other.broker_id) for other in others]
        return all(other is not None and other.metadata_offset >= contact.shutdown_offset for other in known)
