"""ConnectionRates: rate limits for new connections by address (connection_creation_rate, KIP-612, Kafka's ConnectionQuotas)."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

from barnabas.broker.quotas.client_quotas import DEFAULT_WINDOW, QuotaWindow
from barnabas.broker.quotas.rate import SampledRate

TRACKED_MAX: Final = 10_000  # addresses


class ConnectionRates:
    """Rates of new connections by address with a limit; LRU eviction above TRACKED_MAX. Times are monotonic milliseconds."""

    def __init__(self, window: QuotaWindow = DEFAULT_WINDOW) -> None:
        self._window = window
        self._limits: dict[str | None, float] = {}  # by address; None: of every other address
        self._rates: OrderedDict[str, SampledRate] = OrderedDict()  # least recently used first

    def set_limit(self, address: str | None, limit: float | None) -> None:
        """Connections a second of an address, or of all others (None). A limit of None removes it."""
        key = None if address is None else address_of(address)
        if limit is None:
            self._limits.pop(key, None)
        else:
            self._limits[key] = limit

    @property
    def configured(self) -> bool:
        """Whether any address has a limit."""
        return bool(self._limits)

    def arrived(self, host: str, now_ms: int) -> int:
        """How long an accepted connection must be delayed before it is closed; 0: it may stay. A refused one does not count."""
        address = address_of(host)
        limit = self._limits.get(address, self._limits.get(None))
        if limit is None:
            return 0
        rate = self._rates.get(address)
        if rate is None:
            if len(self._rates) >= TRACKED_MAX:
                self._rates.popitem(last=False)
            rate = self._rates[address] = SampledRate(*self._window)
        else:
            self._rates.move_to_end(address)
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(limit, now_ms), self._window.sample_ms)
        if throttle_ms > 0:
            rate.record(-1, now_ms)
        return throttle_ms


def address_of(host: str) -> str:
    """Canonical text of an address; an IPv4 address in an IPv6 one is the IPv4 address. Other texts are unchanged."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
