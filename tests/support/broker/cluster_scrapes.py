"""Scrapes of all brokers of a kit cluster, and sums over them."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterable

from barnabas.testing import Cluster, kit_thread
from tests.support.broker.scrapes import Scrape

DEADLINE_S = 60.0
TRIES_MAX = 2_000


def addresses(kafka: Cluster, brokers: Iterable[int] = (1, 2, 3)) -> list[str]:
    """HOST:PORT of the metrics of some brokers."""
    backend = kafka.backend("metrics")
    found = [kit_thread.wait(backend.command(each, "metrics_address", {}), DEADLINE_S) for each in brokers]
    return [f"{host}:{port}" for host, port in found]


def scraped(address: str) -> Scrape:
    """One scrape."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as answer:
        return Scrape(answer.read().decode())


def scrapes(kafka: Cluster, brokers: Iterable[int] = (1, 2, 3)) -> list[Scrape]:
    """A scrape of each of these brokers."""
    return [scraped(each) for each in addresses(kafka, brokers)]


def until(kafka: Cluster, brokers: Iterable[int], condition: Callable[[list[Scrape]], object]) -> list[Scrape]:
    """Scrapes these brokers until the condition holds."""
    found: list[Scrape] = []
    wanted = tuple(brokers)
    for _ in range(TRIES_MAX):
        found = scrapes(kafka, wanted)
        if condition(found):
            return found
    raise AssertionError("the metrics never showed it")


def total(found: Iterable[Scrape], name: str, **labels: str) -> float:
    """The sum over all scrapes of the samples that have at least these labels."""
    return sum(each.total(name, **labels) for each in found)
