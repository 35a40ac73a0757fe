"""Metrics endpoint: /metrics and health over HTTP, at the address of `metrics.listen`.

| path | answer |
|---|---|
| /metrics | every series; OpenMetrics or the text format by Accept, gzip by Accept-Encoding |
| /livez | 200 as long as the process answers; 503 once the node has failed |
| /readyz | 200 if the node serves clients, else 503 with the reason in words |
| /startupz | 200 once the node has served for the first time |
| /v1/status/ready | as /readyz, in Redpanda's words |
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from barnabas.broker.metrics.awaited import awaited
from barnabas.broker.metrics.exposition import OPENMETRICS, TEXT, Exposition, gzipped, wants_openmetrics
from barnabas.broker.metrics.health import Health
from barnabas.broker.scheduling.slices import Slices
from barnabas.network_port import Network
from barnabas.runtime.http_server import HttpAnswer, HttpRefusal, HttpRequest, HttpServer
from barnabas.work import Steps

PLAIN: Final = "text/plain; charset=utf-8"
PATHS: Final = ("/metrics", "/livez", "/readyz", "/startupz", "/v1/status/ready")
METHODS: Final = ("GET", "HEAD")


class MetricsEndpoint:
    """The HTTP service. Scrapes run in slices of the loop, one at a time."""

    body_bytes_max = 0

    def __init__(self, slices: Slices, health: Health) -> None:
        self.exposition = Exposition()  # the collectors
        self.health = health  # answers of the health paths
        self._slices = slices
        self._server: HttpServer | None = None
        self._turn = asyncio.Lock()

    async def open(self, network: Network, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError."""
        self._server = await HttpServer.open(self, network, host, port, name="metrics")

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port; ("", 0) before `open`."""
        return ("", 0) if self._server is None else self._server.address

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    # -- runtime.http_server.Service

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Why a request is not read further, by its head."""
        if request.method not in METHODS:
            return HttpRefusal(405, f"{request.method[:20]} is not possible: use GET", {"allow": ", ".join(METHODS)})
        return None

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Raises HttpRefusal."""
        try:
            path = urlsplit(request.target).path
        except ValueError:
            path = request.target
        if path == "/metrics":
            return await self._metrics(request.headers)
        if path == "/livez":
            return _told(self.health.alive())
        if path == "/readyz":
            return _told(self.health.ready())
        if path == "/startupz":
            return _told(self.health.started())
        if path == "/v1/status/ready":
            reason = self.health.ready()
            status = b'{"status":"ready"}\n' if reason is None else b'{"status":"booting"}\n'
            return HttpAnswer(200 if reason is None else 503, "application/json", (status,))
        raise HttpRefusal(404, f"unknown path {path[:100]!r}; the paths are {', '.join(PATHS)}")

    def told(self, refusal: HttpRefusal) -> HttpAnswer:
        return HttpAnswer(refusal.status, PLAIN, (f"{refusal}\n".encode("utf-8", "replace"),), refusal.headers)

    async def _metrics(self, headers: Mapping[str, str]) -> HttpAnswer:
        openmetrics = wants_openmetrics(headers.get("accept", ""))
        zipped = _accepts_gzip(headers.get("accept-encoding", ""))
        async with self._turn:
            await self.exposition.prepared()
            pieces = await awaited(self._slices, self._scrape(openmetrics=openmetrics, zipped=zipped))
        told = {"vary": "Accept, Accept-Encoding"} | ({"content-encoding": "gzip"} if zipped else {})
        return HttpAnswer(200, OPENMETRICS if openmetrics else TEXT, pieces, told)

    def _scrape(self, *, openmetrics: bool, zipped: bool) -> Steps[list[bytes]]:
        pieces = yield from self.exposition.written(openmetrics=openmetrics)
        if zipped:
            pieces = yield from gzipped(pieces)
        return pieces


def _told(reason: str | None) -> HttpAnswer:
    return HttpAnswer(200 if reason is None else 503, PLAIN, (f"{reason or 'ok'}\n".encode(),))


def _accepts_gzip(header: str) -> bool:
    for each in header.lower().split(","):
        coding, *parameters = (part.strip() for part in each.split(";"))
        if coding in ("gzip", "x-gzip", "*"):
            return not any(part.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for part in parameters)
    return False
