"""BrokerListing: the brokers that this node lists to clients (Metadata, DescribeCluster, leader hints)."""

from __future__ import annotations

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import BrokerImage, MetadataDelta, MetadataImage
from barnabas.broker.image.records import RegisteredEndpoint
from barnabas.broker.scheduling.reactor import Reactor

Addressed = list[tuple[BrokerImage, RegisteredEndpoint]]


class BrokerListing:
    """The listed brokers of one node, with their addresses for the client's listener.

    A broker that was just fenced, or shuts down, is listed for one more session (broker.session.timeout.ms), as in Kafka, which detects a
    death only then. Clients drop the state of an omitted broker: librdkafka 2.11 to 2.16 waits without end for a group coordinator that it
    remembers (confluentinc/librdkafka#5511), and may lose a new leader for a second; aiokafka cannot connect to a restarted broker until
    its metadata is old (aio-libs/aiokafka#1145). A fenced broker that this node never saw unfenced is listed only if it registered before
    this node started.
    """

    def __init__(self, reactor: Reactor, config: BrokerConfig, current: CurrentImage) -> None:
        self._reactor = reactor
        self._config = config
        self._current = current
        self._live: dict[str, Addressed] = {}  # by listener
        self._missed_until_ms: dict[int, int] = {}  # fenced brokers that are still listed, by id

    def on_image(self, former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """The offset of `former` is −1 before this node's first image."""
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
        """Neither fenced nor shutting down."""
        found = self._live.get(listener)
        if found is None:
            found = self._live[listener] = _with_address(self._current.image.alive_brokers(), listener)
        return found

    def listed(self, listener: str) -> Addressed:
        """Brokers that clients may connect to: live now or recently."""
        live = self.live(listener)
        if not self._missed_until_ms:
            return live
        now_ms = self._reactor.clock.monotonic_ms()
        self._missed_until_ms = {each: until for each, until in self._missed_until_ms.items() if now_ms < until}
        brokers = self._current.image.brokers
        return live + _with_address([brokers[each] for each in self._missed_until_ms], listener)

    def registered(self, listener: str) -> Addressed:
        """All registered brokers, including fenced ones."""
        return _with_address(list(self._current.image.brokers.values()), listener)


def _is_away(broker: BrokerImage) -> bool:
    return broker.fenced or broker.in_controlled_shutdown


def _with_address(brokers: list[BrokerImage], listener: str) -> Addressed:
    found = []
    for broker in brokers:
        address = broker.endpoint(listener)
        if address is not None:
            found.append((broker, address))
    return found
