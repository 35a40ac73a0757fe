"""A task of the source: the records of one range of offsets, as Arrow record batches.

The shell between Spark's synchronous iterator and the client: a loop of its own, one connection to the leader. While Spark
works on a batch the next one is already asked for. Lost records end the task, or are passed over where `failOnDataLoss` is
off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from barnabas.client.cluster import Cluster
from barnabas.client.errors import KafkaError, OffsetOutOfRange
from barnabas.client.offsets import EARLIEST, LATEST, list_offsets
from barnabas.client.ranges import Chunk, RangeReader
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.pipeline.columns import decode
from barnabas.pipeline.connection import connected
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import OffsetRange
from barnabas.runtime.loop import loop_factory

__all__ = ["LeftOut", "read_range"]

_log = logging.getLogger(__name__)


class LeftOut:
    """How many records of a range are not among its rows, and why; counted while it is read."""

    def __init__(self) -> None:
        self.control = 0
        self.aborted = 0


def read_range(options: SourceOptions, wanted: OffsetRange, left_out: LeftOut | None = None) -> Iterator[Any]:
    """The record batches of a range, in offset order.

    Args:
        left_out: takes what is left out of a range that begins and ends where batches do.

    Raises:
        PipelineError: records of the range are lost, and `failOnDataLoss` is on; no broker answers.
        KafkaError: the partition cannot be read.
    """
    steps = loop_factory()()  # not asyncio.Runner: it prepares for Ctrl-C at every step, which costs more than the step
    try:
        cluster = steps.run_until_complete(connected(options.client))
        try:
            task = _Task(options, wanted, cluster)
            while (chunk := steps.run_until_complete(task.next())) is not None:
                try:
                    rows = decode(chunk, task.start, wanted.end, wanted.topic, wanted.partition, options.columns)
                except RemoteProtocolError as error:
                    raise KafkaError(
                        f"a batch before offset {chunk.next_offset} cannot be read: {error}",
                        code=ErrorCode.CORRUPT_MESSAGE,
                        topic=wanted.topic,
                        partition=wanted.partition,
                    ) from error
                if rows is not None:
                    yield rows
            if left_out is not None:
                left_out.control, left_out.aborted = task.control, task.aborted
        finally:
            steps.run_until_complete(cluster.close())
    finally:
        steps.close()


class _Task:
    """Goes on behind lost records, where that is allowed."""

    def __init__(self, options: SourceOptions, wanted: OffsetRange, cluster: Cluster) -> None:
        self.start = wanted.start  # the first offset that is delivered, if it is there
        self._options = options
        self._wanted = wanted
        self._cluster = cluster
        self._tp = TopicPartition(wanted.topic, wanted.partition)
        self.control = self.aborted = 0
        self._reader: RangeReader | None = self._reader_from(wanted.start)

    async def next(self) -> Chunk | None:
        while self._reader is not None:
            reader = self._reader
            try:
                chunk = await reader.next()
            except OffsetOutOfRange:
                await self._lost(reader.position)
                continue
            if chunk is None:
                self.control, self.aborted = reader.control, reader.aborted
            return chunk
        return None

    def _reader_from(self, position: int) -> RangeReader:
        options = self._options
        return RangeReader(
            self._cluster,
            self._tp,
            position,
            self._wanted.end,
            read_committed=options.read_committed,
            check_crcs=options.check_crcs,
            fetch_bytes=options.fetch_bytes,
            max_wait_ms=options.fetch_max_wait_ms,
            stall_timeout_ms=options.poll_timeout_ms,
        )

    async def _lost(self, position: int) -> None:
        """The log does not hold `position`: tells so, or goes on behind the gap."""
        first = (await list_offsets(self._cluster, {self._tp: EARLIEST}))[self._tp].offset
        last = (await list_offsets(self._cluster, {self._tp: LATEST}))[self._tp].offset
        end = self._wanted.end
        goes_on = first if position < first < end else end
        if self._options.fail_on_data_loss:
            raise PipelineError(
                "failOnDataLoss",
                "true",
                "keep records longer than reading takes (retention.ms), or set it to 'false' to go on behind the gap",
                f"stops the query: offsets {position} to {goes_on - 1} of partition {self._tp.partition} of"
                f" {self._tp.topic!r} are lost, the log holds {first} to {last}",
            )
        _log.warning("offsets %d to %d of %s-%d are lost", position, goes_on - 1, *self._tp)
        self.start = goes_on
        self._reader = self._reader_from(goes_on) if goes_on < end else None
