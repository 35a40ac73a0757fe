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

from barnabas.broker.config.broker_config import BROKER
from barnabas.broker.membership.lifecycle import BrokerState
from barnabas.broker.metrics.exposition import OPENMETRICS, TEXT, Exposition, awaited, gzipped, wants_openmetrics
from barnabas.broker.metrics.loop_watch import LoopWatch
from barnabas.broker.metrics.parts import Observed
from barnabas.broker.scheduling.slices import Slices
from barnabas.network_port import Network
from barnabas.runtime.http_server import HttpAnswer, HttpRefusal, HttpRequest, HttpServer
from barnabas.work import Steps

PLAIN: Final = "text/plain; charset=utf-8"
PATHS: Final = ("/metrics", "/livez", "/readyz", "/startupz", "/v1/status/ready")
METHODS: Final = ("GET", "HEAD")


class Health:
    """A broker is ready while unfenced, with all logs and log directories; a controller once it has metadata and a leader."""

    def __init__(self, node: Observed, watch: LoopWatch) -> None:
        self._node = node
        self._watch = watch
        self._started = False

    def alive(self) -> str | None:
        """Why the process should be ended; None while it works."""
        failure = self._node.reactor.failure
        return None if failure is None else f"the node has failed: {failure}"

    def started(self) -> str | None:
        """Why the node has not served yet; None once it has served."""
        if not self._started:
            reason = self.ready()
            self._started = reason is None or self._node.server.serving
            return None if self._started else reason
        return None

    def ready(self) -> str | None:
        """Why the node is not ready; None if it is."""
        return self.alive() or self._failed_directory() or self._not_serving() or self._stalled()

    def _failed_directory(self) -> str | None:
        failed = [each for each in self._node.log_dirs if each.failure is not None]
        return f"log directory failed: {failed[0].failure}" if failed else None

    def _not_serving(self) -> str | None:
        node = self._node
        image = node.current_image.image
        if image.offset < 0:
            return "loading metadata: nothing is replayed yet"
        if BROKER not in node.config.roles:
            known = node.quorum.leader_id >= 0
            return None if known else "loading metadata: no leader of the metadata quorum is known"
        state = node.lifecycle.state
        if state is BrokerState.STARTING:
            return f"loading metadata: node {node.node_id} is not registered yet"
        if state in (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.STOPPED):
            return "the node stops"
        opened, total = node.replicas.recovery_progress
        if opened < total or state is BrokerState.RECOVERY:
            return f"recovering {total - opened} of {total} partitions"
        registered = image.brokers.get(node.node_id)
        if registered is None or registered.fenced or not node.server.serving:
            return "fenced: the controller has not admitted this broker"
        return None

    def _stalled(self) -> str | None:
        stall = self._watch.recent_stall()
        return None if stall is None else f"the loop stalled for {stall[0]} ms, {stall[1] / 1000:.1f} s ago"


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
