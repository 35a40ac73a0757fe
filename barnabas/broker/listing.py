"""Listing: which brokers this node tells clients of, with their addresses under the listener by which they came.

Driven by: published images (a subscriber of `CurrentImage`) and the monotonic clock. Asked by Metadata, DescribeCluster and leader hints.

A broker that was just fenced, or shuts down, is listed for one session more (broker.session.timeout.ms), though it leads nothing.
Kafka lists a dead broker as long, for it does not know better; here its death is known within a second. But clients take what a
Metadata answer lacks for gone for good, and lose with it what they had kept of it: librdkafka 2.11 to 2.16 then waits without end
for a group coordinator that it remembers (confluentinc/librdkafka#5511), aiokafka cannot connect to one that is back until its
metadata is old (aio-libs/aiokafka#1145). And where librdkafka reads in one answer that a broker is gone and who leads in its
place, it may lose the latter for a second. A broker that comes back within a session is never missing.

Invariants: what is live is listed; who was never seen unfenced by this node is listed only where it was there before this node.
"""

from __future__ import annotations

from barnabas.broker.config import BrokerConfig
from barnabas.broker.current_image import CurrentImage
from barnabas.broker.metadata.image import BrokerImage, MetadataDelta, MetadataImage
from barnabas.broker.metadata.records import RegisteredEndpoint
from barnabas.broker.reactor import Reactor

__all__ = ["BrokerListing"]

Addressed = list[tuple[BrokerImage, RegisteredEndpoint]]


class BrokerListing:
    """See the module. Every node has one."""

    def __init__(self, reactor: Reactor, config: BrokerConfig, current: CurrentImage) -> None:
        self._reactor = reactor
        self._config = config
        self._current = current
        self._live: dict[str, Addressed] = {}  # by listener
        self._missed_until_ms: dict[int, int] = {}  # fenced brokers that are listed still, by id

    def on_image(self, former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """`image` replaces `former`, whose offset is −1 before this node's first image."""
        if not delta.brokers:
            return
        self._live.clear()
        until_ms = self._reactor.clock.monotonic_ms() + self._config.get_int("broker.session.timeout.ms")
        for broker_id in delta.brokers:
            broker, before = image.brokers.get(broker_id), former.brokers.get(broker_id)
            if broker is None or not _is_away(broker):
                self._missed_until_ms.pop(broker_id, None)
            elif not _is_away(before) if before is not None else former.offset < 0:
                self._missed_until_ms[broker_id] = until_ms

    def live(self, listener: str) -> Addressed:
        """Brokers that serve: neither fenced nor shutting down."""
        found = self._live.get(listener)
        if found is None:
            found = self._live[listener] = _with_address(self._current.image.alive_brokers(), listener)
        return found

    def listed(self, listener: str) -> Addressed:
        """Brokers that clients may connect to: the live ones, and those that were until lately."""
        live = self.live(listener)
        if not self._missed_until_ms:
            return live
        now_ms = self._reactor.clock.monotonic_ms()
        self._missed_until_ms = {each: until for each, until in self._missed_until_ms.items() if now_ms < until}
        brokers = self._current.image.brokers
        return live + _with_address([brokers[each] for each in self._missed_until_ms], listener)

    def registered(self, listener: str) -> Addressed:
        """All registered brokers, fenced ones too."""
        return _with_address(list(self._current.image.brokers.values()), listener)


def _is_away(broker: BrokerImage) -> bool:
    return broker.fenced or broker.in_controlled_shutdown


def _with_address(brokers: list[BrokerImage], listener: str) -> Addressed:
    """Brokers that have such a listener."""
    found = []
    for broker in brokers:
        address = broker.endpoint(listener)
        if address is not None:
            found.append((broker, address))
    return found
