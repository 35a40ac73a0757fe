"""Kafka for tests: `Cluster` and `Broker`, and their errors. The names are imported on first use: the pytest plugin costs nothing without Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.testing.cluster import Broker, BrokerHandle, Cluster
    from barnabas.testing.errors import KitError, KitTimeout, LeakedClientWarning, NotPossible
    from barnabas.testing.faults.handles import Fault, Faults

__all__ = [
    "Broker",
    "BrokerHandle",
    "Cluster",
    "Fault",
    "Faults",
    "KitError",
    "KitTimeout",
    "LeakedClientWarning",
    "NotPossible",
]

_PLACES = {
    "Broker": "cluster",
    "BrokerHandle": "cluster",
    "Cluster": "cluster",
    "Fault": "faults.handles",
    "Faults": "faults.handles",
    "KitError": "errors",
    "KitTimeout": "errors",
    "LeakedClientWarning": "errors",
    "NotPossible": "errors",
}


def __getattr__(name: str) -> Any:
    module = _PLACES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
