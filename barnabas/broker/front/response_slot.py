"""ResponseSlot: a pending response's place in the output order of its connection."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.broker.api.router import Route
from barnabas.broker.front.quota_enforcement import Charge
from barnabas.protocol.connection import Slot
from barnabas.protocol.registry import READS


class ResponseSlot(Slot):
    """The place of an answer that is made later."""

    __slots__ = ("charge", "correlation", "route", "timing")

    def __init__(self, route: Route, correlation: int, charge: Charge | None) -> None:
        super().__init__()
        self.timing = route.hold() if route.began_ns else None
        self.route = route
        self.only_reads = route.api_key in READS
        self.correlation = correlation
        self.charge = charge


def waiting_apis(slots: Iterable[Slot]) -> list[int]:
    """API keys of the requests that wait for their answer."""
    return [slot.route.api_key for slot in slots if isinstance(slot, ResponseSlot)]
