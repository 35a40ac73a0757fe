"""ConnectionRates: how fast each address may open connections (connection_creation_rate, KIP-612).

Only addresses with a limit are measured, at most TRACKED_MAX of them: the least recently used one is forgotten. A connection that is refused
does not count. Times are monotonic milliseconds. Follows Kafka's ConnectionQuotas.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

from barnabas.broker.quotas.client_quotas import DEFAULT_WINDOW, QuotaWindow
from barnabas.broker.quotas.rate import SampledRate

TRACKED_MAX: Final = 10_000  # addresses


class ConnectionRates:
    """The rates of new connections, by address."""

    def __init__(self, window: QuotaWindow = DEFAULT_WINDOW) -> None:
        self._window = window
        self._limits: dict[str | None, float] = {}  # by address; None: of every other address
        self._rates: OrderedDict[str, SampledRate] = OrderedDict()  # least recently used first

    def set_limit(self, address: str | None, limit: float | None) -> None:
        """Sets the connections a second of an address, or of all others (None). A limit of None removes it."""
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
        """A connection from `host` was accepted. Returns for how long it must be delayed before it is closed; 0: it may stay."""
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
    """The canonical text of an address; an IPv4 address in an IPv6 one is the IPv4 address. Any other text as it is."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
