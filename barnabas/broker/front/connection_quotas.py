"""Limits the number of connections of a server and the rate of new ones: max.connections and the related keys.

A listener stops accepting for a while when it has reached its own limit, when connections arrive too fast, or when all listeners
together have max.connections. The last limit does not stop the inter-broker listener (`protected`), so clients cannot keep
brokers from connecting to each other; if that listener exceeds the limit, other listeners close connections (`excess`). A connection
is refused if its address has max.connections.per.ip already. listener.name.<name>.max.connections limits one listener.

Follows Kafka's ConnectionQuotas (SocketServer.scala), KIP-402 and KIP-612. Deviation: a rate is measured over one second, so that
the connections of ten seconds cannot come in one burst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.key import parse_overrides

MAX_CONNECTIONS: Final = "max.connections"
CREATION_RATE: Final = "max.connection.creation.rate"
PER_IP: Final = "max.connections.per.ip"
OVERRIDES: Final = "max.connections.per.ip.overrides"
WINDOW_MS: Final = 1_000


class _Rate:
    """Arrivals within the last window; allows `rate` a second."""

    __slots__ = ("_at_ms", "_used")

    def __init__(self) -> None:
        self._used = 0.0
        self._at_ms = 0

    def record(self, rate: int, now_ms: int) -> None:
        self._advance(rate, now_ms)
        self._used += 1

    def take_back(self) -> None:
        self._used = max(0.0, self._used - 1)

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """Time until one more connection may arrive; 0: now."""
        self._advance(rate, now_ms)
        too_many = self._used + 1 - max(rate, 1)
        if rate > 0 and too_many <= 0:
            return 0
        return WINDOW_MS if rate == 0 else int(too_many * WINDOW_MS / rate) + 1

    def _advance(self, rate: int, now_ms: int) -> None:
        self._used = max(0.0, self._used - (now_ms - self._at_ms) * rate / WINDOW_MS)
        self._at_ms = now_ms


class ConnectionQuotas:
    """The connection counts of one server's listeners.

    Args:
        protected: name of the inter-broker listener, which the limit of all listeners together does not stop.
    """

    def __init__(self, config: BrokerConfig, protected: str | None = None) -> None:
        self._config = config
        self._protected = protected
        self._counts: dict[str, int] = {}
        self._rates: dict[str, _Rate] = {}
        self._rate = _Rate()
        self._by_host: dict[str, int] = {}
        self._overrides_text = ""
        self._overrides: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Connections of all listeners."""
        return sum(self._counts.values())

    @property
    def by_listener(self) -> Mapping[str, int]:
        """Open connections of each listener."""
        return self._counts

    def add_listener(self, listener: str) -> None:
        """Adds a listener without connections."""
        self._counts[listener] = 0
        self._rates[listener] = _Rate()

    def opened(self, listener: str, now_ms: int) -> None:
        """A connection was accepted."""
        self._counts[listener] += 1
        self._rates[listener].record(self._limit(listener, CREATION_RATE), now_ms)
        if not self.protects(listener):
            self._rate.record(self._config.get_int(CREATION_RATE), now_ms)

    def not_opened(self, listener: str) -> None:
        """The last accepted connection does not count for the rates: its address connects too often."""
        self._rates[listener].take_back()
        if not self.protects(listener):
            self._rate.take_back()

    def closed(self, listener: str) -> None:
        """An accepted connection has ended."""
        self._counts[listener] -= 1

    def arrived(self, host: str) -> str | None:
        """Counts an accepted connection from `host`. Returns why it must be closed, None if it may stay; it counts in both cases."""
        count = self._by_host[host] = self._by_host.get(host, 0) + 1
        most = self._host_max(host)
        if count <= most:
            return None
        return f"{host} has {most} connections already ({PER_IP})"

    def left(self, host: str) -> None:
        """A connection counted by `arrived` has ended."""
        count = self._by_host[host] - 1
        if count:
            self._by_host[host] = count
        else:
            del self._by_host[host]

    def protects(self, listener: str) -> bool:
        """Whether the limit of all listeners together does not apply to this one."""
        return listener == self._protected and len(self._counts) > 1

    def wait_ms(self, listener: str, now_ms: int) -> int:
        """Time until a listener may accept connections: 0 now, -1 after one has ended, else milliseconds."""
        if self._counts[listener] >= self._limit(listener, MAX_CONNECTIONS):
            return -1
        protected = self.protects(listener)
        if not protected and self.total >= self._config.get_int(MAX_CONNECTIONS):
            return -1
        wait_ms = self._rates[listener].wait_ms(self._limit(listener, CREATION_RATE), now_ms)
        if not protected:
            wait_ms = max(wait_ms, self._rate.wait_ms(self._config.get_int(CREATION_RATE), now_ms))
        return wait_ms

    @property
    def excess(self) -> int:
        """How many connections of unprotected listeners must be closed."""
        return max(0, self.total - self._config.get_int(MAX_CONNECTIONS))

    def _limit(self, listener: str, key: str) -> int:
        return self._config.get_listener_int(listener, key)

    def _host_max(self, host: str) -> int:
        text = self._config.get_str(OVERRIDES) or ""
        if text != self._overrides_text:
            self._overrides_text, self._overrides = text, parse_overrides(text)
        found = self._overrides.get(host)
        return self._config.get_int(PER_IP) if found is None else found
