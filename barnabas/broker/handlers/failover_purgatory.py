"""FailoverPurgatory: delays responses that name a leader that has just died, until it has a successor.

A client whose connection to a broker ends asks another broker for metadata or for a coordinator at once, and keeps the answer long:
librdkafka asks again for a partition without a leader after a second, for a coordinator after half a second, although the
next leader is elected some milliseconds after the question. So an answer is made LOOK_MS after its request, when this node has
noticed that its own connections to that broker ended, too. While a named leader is `missing`, the answer waits for its fencing, for
its return, or for HELD_MS_MAX. A waiting answer delays later answers of its connection, not later requests.

Invariants: each Pending is resolved once, HELD_MS_MAX after its request at the latest. Responses that
name only this node, or no leader, are never delayed: they would delay later responses of their connection.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final, NamedTuple

from barnabas.broker.api.call import Computed, Pending
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import NO_LEADER, MetadataDelta, MetadataImage
from barnabas.broker.peers.peers import Peers
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.timers import Timer
from barnabas.protocol.schema import Message

LOOK_MS: Final = 5  # within this time both ends notice that a killed process's connections closed
AGAIN_MS: Final = 20  # between checks whether a missing broker is back
HELD_MS_MAX: Final = 800  # less than the second after which the bundled client asks another broker


class _Held(NamedTuple):
    leaders: Set[int]
    answer: Callable[[], Message | Computed]
    due_ms: int
    until_ms: int


class FailoverPurgatory:
    """Delayed answers of one node."""

    def __init__(self, reactor: Reactor, config: BrokerConfig, current: CurrentImage, peers: Peers) -> None:
        self._reactor = reactor
        self._node_id = config.node_id
        self._listener_name = config.inter_broker_listener
        self._current = current
        self._peers = peers
        self._held: dict[Pending[Message], _Held] = {}  # in the order of their requests
        self._timer: Timer | None = None

    def missing(self) -> set[int]:
        """Unfenced brokers whose connections to this node have just ended; the controller will soon decide whether they are gone."""
        missing = set()
        for broker in self._current.image.alive_brokers():
            address = broker.endpoint(self._listener_name)
            if broker.broker_id == self._node_id or address is None:
                continue
            if self._peers.missing(address.host, address.port):
                missing.add(broker.broker_id)
        return missing

    def may_be_missing(self, leaders: Set[int]) -> bool:
        """Whether one of the `leaders` may be missing: another broker than this one. Else an answer that names them need not wait."""
        return any(leader not in (self._node_id, NO_LEADER) for leader in leaders)

    def pending(self, leaders: Set[int], answer: Callable[[], Message | Computed]) -> Pending[Message]:
        """Returns a Pending that is resolved by `answer()` once none of the `leaders` is missing.

        Args:
            leaders: ids of the brokers that the answer would name.
            answer: makes the response.
        """
        now_ms = self._reactor.clock.monotonic_ms()

        def forget() -> None:
            del self._held[pending]

        pending: Pending[Message] = Pending(on_closed=forget)
        self._held[pending] = _Held(leaders, answer, now_ms + LOOK_MS, now_ms + HELD_MS_MAX)
        self._arm(LOOK_MS)
        return pending

    def on_image(self, _former: MetadataImage, _image: MetadataImage, _delta: MetadataDelta) -> None:
        """A new image is published: a missing broker may be fenced."""
        if self._held:
            self._look()

    def _arm(self, delay_ms: int) -> None:
        due_ms = self._reactor.clock.monotonic_ms() + delay_ms
        if self._timer is not None:
            if self._timer.deadline_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer = self._reactor.call_later(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._look()

    def _look(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        missing = self.missing()
        ready = [
            (pending, held)
            for pending, held in self._held.items()
            if held.due_ms <= now_ms and (held.until_ms <= now_ms or missing.isdisjoint(held.leaders))
        ]
        for pending, held in ready:
            del self._held[pending]
            pending.resolve(held.answer())
        if self._held:
            delays_ms = (held.due_ms - now_ms for held in self._held.values())
            self._arm(min(delay_ms if delay_ms > 0 else AGAIN_MS for delay_ms in delays_ms))
