"""Exposition: writes all collectors' families in the Prometheus text format 0.0.4 or as OpenMetrics 1.0."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

from prometheus_client import exposition as text_format
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector as PrometheusCollector

from barnabas.broker.scheduling.slices import Slices
from barnabas.loggers import logger
from barnabas.work import SLICE, Steps, Work

log = logger("kafka.server")

Preparation = Callable[[], Awaitable[None]]
TEXT: Final = text_format.CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS: Final = openmetrics_format.CONTENT_TYPE_LATEST
END: Final = b"# EOF\n"
SAMPLES_PER_UNIT: Final = 2
GZIP_LEVEL: Final = 1
GZIP_PIECE_BYTES: Final = 128 * 1024  # compressed without Python's lock
T = TypeVar("T")


class _Written(Protocol):
    """A `LineTable` of any kind of key."""

    def written(self, out: list[bytes], *, openmetrics: bool) -> Work: ...


Collected = Metric | _Written | None
Collector = Callable[[], Iterable[Collected]]


class _One(PrometheusCollector):
    """A registry of one family, for the encoders of prometheus_client."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Exposition:
    """The collectors of a node, called for every scrape.

    A collector takes no arguments and yields `prometheus_client` families, `LineTable`s for thousands of rows, and None where a slice may
    end. One that fails loses its remaining families, never the scrape.
    """

    def __init__(self) -> None:
        self._collectors: list[Collector] = []
        self._preparations: list[Preparation] = []
        self.failures = 0  # of collectors

    def add(self, collector: Collector) -> None:
        """Its families come after those of earlier collectors."""
        self._collectors.append(collector)

    def add_preparation(self, prepare: Preparation) -> None:
        """Adds an awaitable that runs before each scrape and ends within a second, whatever other nodes do."""
        self._preparations.append(prepare)

    async def prepared(self) -> None:
        for prepare in self._preparations:
            try:
                await prepare()
            except Exception:  # as for collectors
                self.failures += 1
                log.exception("Metrics cannot be collected: collector=%r", prepare)

    def written(self, *, openmetrics: bool) -> Steps[list[bytes]]:
        """The pieces of an answer, in slices."""
        out: list[bytes] = []
        for collector in tuple(self._collectors):
            try:
                for each in collector():
                    if each is None:
                        yield SLICE
                    elif isinstance(each, Metric):
                        out.append(encoded(each, openmetrics=openmetrics))
                        yield 1 + len(each.samples) // SAMPLES_PER_UNIT
                    else:
                        yield from each.written(out, openmetrics=openmetrics)
            except Exception:  # a bug of one collector must not lose the other families
                self.failures += 1
                log.exception("Metrics cannot be collected: collector=%r", collector)
        if openmetrics:
            out.append(END)
        return out


def encoded(family: Metric, *, openmetrics: bool) -> bytes:
    if openmetrics:
        text: bytes = openmetrics_format.generate_latest(_One(family))  # type: ignore[no-untyped-call]  # it has no types
        return text.removesuffix(END)
    return text_format.generate_latest(_One(family))


def gzipped(pieces: list[bytes]) -> Steps[list[bytes]]:
    """Compresses an answer, in a thread if the node has one. Returns its pieces."""
    packed: list[bytes] = []

    def pack() -> None:
        packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
        for block in _blocks(pieces):
            packed.append(packer.compress(block))
        packed.append(packer.flush())

    yield pack
    return packed


def _blocks(pieces: list[bytes]) -> Iterator[bytes]:
    block: list[bytes] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= GZIP_PIECE_BYTES:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join(block)


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics to the text format."""
    best = {True: 0.0, False: 0.0}
    for each in accept.lower().split(","):
        media, *parameters = (part.strip() for part in each.split(";"))
        quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 0.0
        if media == "application/openmetrics-text":
            best[True] = max(best[True], weight)
        elif media in ("text/plain", "text/*", "*/*"):
            best[False] = max(best[False], weight)
    return best[True] > 0 and best[True] >= best[False]


async def awaited(slices: Slices, work: Steps[T]) -> T:
    """Runs work in slices and returns its result. Cancelling the waiting task cancels the work. Raises what the work raises."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T) -> None:
        if not ended.done():
            ended.set_result(result)

    def failed(error: BaseException) -> None:
        if not ended.done():
            ended.set_exception(error)

    piece = slices.start(work, done, failed)
    try:
        return await ended
    finally:
        piece.cancel()
