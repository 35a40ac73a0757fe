"""Scrapes of a node's metrics: the answer over HTTP, and its samples by name and labels."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from barnabas.broker.node.node import Node

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Scrape:
    """The samples of one scrape.

    Attributes:
        names: the names of all samples.
        families: type by family name.
    """

    def __init__(self, text: str, *, openmetrics: bool = False) -> None:
        self.families: dict[str, str] = {}
        self._samples: dict[str, dict[Labels, float]] = {}
        for family in (parse_openmetrics if openmetrics else parse_text)(text):
            assert family.name not in self.families, f"{family.name} is there twice"
            self.families[family.name] = family.type
            for sample in family.samples:
                found = self._samples.setdefault(sample.name, {})
                labels = tuple(sorted(sample.labels.items()))
                assert labels not in found, f"{sample.name}{sample.labels} is there twice"
                found[labels] = sample.value
        self.names = set(self._samples)

    def value(self, name: str, **labels: str) -> float:
        """The sample with exactly these labels."""
        return self._samples[name][tuple(sorted(labels.items()))]

    def get(self, name: str, **labels: str) -> float | None:
        """The same; None without such a sample."""
        return self._samples.get(name, {}).get(tuple(sorted(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples that have at least these labels."""
        wanted = set(labels.items())
        return sum(value for found, value in self._samples.get(name, {}).items() if wanted <= set(found))

    def rows(self, name: str) -> dict[Labels, float]:
        """All samples of a name, by their labels."""
        return self._samples.get(name, {})

    def labels(self, name: str, label: str) -> set[str]:
        """The values of a label."""
        return {dict(found).get(label, "") for found in self._samples.get(name, {})}


async def get(address: tuple[str, int], path: str, *headers: str, method: str = "GET") -> Answer:
    """One request; the body is unpacked."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        lines = [f"{method} {path} HTTP/1.1", "Host: node", "Connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(60):
            found = await reader.read()
    finally:
        writer.close()
    head, _, body = found.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    told = {name.lower(): value for name, _, value in (each.partition(": ") for each in fields)}
    if told.get("content-encoding") == "gzip" and body:
        body = gzip.decompress(body)
    return Answer(int(status.split()[1]), told, body)


async def scrape(node: Node, *headers: str) -> Scrape:
    """What a node serves at /metrics."""
    assert node.metrics is not None
    answer = await get(node.metrics.address, "/metrics", *headers)
    assert answer.status == 200, answer
    return Scrape(answer.body.decode(), openmetrics="openmetrics" in answer.headers["content-type"])
