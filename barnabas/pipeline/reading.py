"""Source task: reads ranges of offsets as Arrow record batches, with its own event loop and connection."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from barnabas.client.consumer.ranges import Chunk, RangeReader, fetch_together
from barnabas.client.errors import KafkaError, LogTruncated, OffsetOutOfRange, RequestTimedOut
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.offsets import EARLIEST, LATEST, epoch_ends, list_offsets
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.pipeline.columns import Piece, decode
from barnabas.pipeline.connection import connected
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import OffsetRange
from barnabas.runtime.loop import loop_factory

_log = logging.getLogger(__name__)
_DECODED_BYTES_MIN = 256 * 1024  # of several small ranges together: each decoding has a fixed cost


class LeftOut:
    """Numbers of skipped records of a range, by reason."""

    def __init__(self) -> None:
        self.control = 0
        self.aborted = 0


def read_ranges(
    options: SourceOptions, wanted: Sequence[OffsetRange], left_out: LeftOut | None = None
) -> Iterator[Any]:
    """Reads ranges one after another as Arrow record batches, each range in offset order.

    Args:
        left_out: counts the skipped records; only for ranges that begin and end at batch boundaries.

    Raises:
        PipelineError: records of a range are lost, also by a truncation since the plan, and `failOnDataLoss` is on;
            no broker answers.
        KafkaError: a partition cannot be read.
    """
    if not wanted:
        return
    # not asyncio.Runner: it installs a SIGINT handler at every step, which costs more than the step
    steps = loop_factory()()
    try:
        topics = dict.fromkeys(each.topic for each in wanted)
        cluster = steps.run_until_complete(connected(options.client, topics))
        try:
            tasks = [_Task(options, each, cluster) for each in wanted]
            steps.run_until_complete(fetch_together([task.reader for task in tasks if task.reader is not None]))
            pieces: list[Piece] = []
            size_bytes = 0
            enough_bytes = _DECODED_BYTES_MIN if len(tasks) > 1 else 0
            for task in tasks:
                while (chunk := steps.run_until_complete(task.next())) is not None:
                    pieces.append(task.piece(chunk))
                    size_bytes += len(chunk.data)
                    if size_bytes >= enough_bytes:
                        yield from _decoded(pieces, options.columns)
                        pieces, size_bytes = [], 0
            yield from _decoded(pieces, options.columns)
            if left_out is not None:
                left_out.control, left_out.aborted = sum(t.control for t in tasks), sum(t.aborted for t in tasks)
        finally:
            steps.run_until_complete(cluster.close())
    finally:
        steps.close()


def _decoded(pieces: Sequence[Piece], columns: Sequence[str]) -> Iterator[Any]:
    if not pieces:
        return
    try:
        rows = decode(pieces, columns)
    except RemoteProtocolError as error:
        if len(pieces) > 1:
            for each in pieces:  # the records before the damaged ones, then the error
                yield from _decoded([each], columns)
            return
        raise KafkaError(
            f"a batch before offset {pieces[0].chunk.next_offset} cannot be read: {error}",
            code=ErrorCode.CORRUPT_MESSAGE,
            topic=pieces[0].topic,
            partition=pieces[0].partition,
        ) from error
    if rows is not None:
        yield rows


class _Task:
    """Reads a range, and skips lost records if `failOnDataLoss` is off."""

    def __init__(self, options: SourceOptions, wanted: OffsetRange, cluster: NetworkClient) -> None:
        self.start = wanted.start  # the first offset to deliver, if it exists
        self._options = options
        self._wanted = wanted
        self._cluster = cluster
        self._tp = TopicPartition(wanted.topic, wanted.partition)
        self._epoch = wanted.epoch
        self.control = self.aborted = 0
        self.reader: RangeReader | None = self._reader_from(wanted.start)

    async def next(self) -> Chunk | None:
        while self.reader is not None:
            reader = self.reader
            try:
                await self._check_truncated()
                chunk = await reader.next()
            except LogTruncated as error:
                await self._truncated(reader.position, str(error))
                continue
            except OffsetOutOfRange:
                await self._lost(reader.position)
                continue
            except RequestTimedOut as error:
                if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE or self._options.fail_on_data_loss:
                    raise
                _log.warning("offsets %d to %d of %s-%d: %s", reader.position, self._wanted.end - 1, *self._tp, error)
                self.reader = None
                continue
            if chunk is None:
                self.control, self.aborted = reader.control, reader.aborted
            return chunk
        return None

    def piece(self, chunk: Chunk) -> Piece:
        """What is wanted of a chunk that `next` has returned."""
        return Piece(chunk, self.start, self._wanted.end, *self._tp)

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

    async def _check_truncated(self) -> None:
        """Before the first fetch: whether the log was truncated below the range's end since the plan."""
        epoch, self._epoch = self._epoch, -1
        if epoch < 0:
            return
        if self._tp not in self._cluster.metadata.leader_epochs:  # the reader has just added the topic
            await self._cluster.fresh_metadata()
        if self._cluster.metadata.leader_epochs.get(self._tp, epoch) == epoch:
            return
        end = (await epoch_ends(self._cluster, {self._tp: epoch}))[self._tp]
        if 0 <= end < self._wanted.end:
            raise LogTruncated(self._tp, self._wanted.end, end)

    async def _truncated(self, position: int, what: str) -> None:
        """A truncated log: raises, or with `failOnDataLoss` off reads its present records."""
        if self._options.fail_on_data_loss:
            raise PipelineError(
                "failOnDataLoss",
                "true",
                "elect leaders from in-sync replicas (unclean.leader.election.enable=false), or set it to 'false' to read what"
                " the log has now",
                f"stops the query: {what}",
            )
        last = (await list_offsets(self._cluster, {self._tp: LATEST}))[self._tp].offset
        _log.warning("reading %s-%d continues at offset %d and ends at %d: %s", *self._tp, position, last, what)
        self._wanted = self._wanted._replace(end=min(self._wanted.end, last))
        self.reader = self._reader_from(position) if position < self._wanted.end else None

    async def _lost(self, position: int) -> None:
        """A lost `position`: raises, or with `failOnDataLoss` off continues after the gap."""
        first = (await list_offsets(self._cluster, {self._tp: EARLIEST}))[self._tp].offset
        last = (await list_offsets(self._cluster, {self._tp: LATEST}))[self._tp].offset
        end = self._wanted.end
        goes_on = first if position < first < end else end
        if self._options.fail_on_data_loss:
            raise PipelineError(
                "failOnDataLoss",
                "true",
                "keep records longer than reading takes (retention.ms), or set it to 'false' to continue after the gap",
                f"stops the query: offsets {position} to {goes_on - 1} of partition {self._tp.partition} of"
                f" {self._tp.topic!r} are lost, the log holds {first} to {last}",
            )
        _log.warning("offsets %d to %d of %s-%d are lost", position, goes_on - 1, *self._tp)
        self.start = goes_on
        self.reader = self._reader_from(goes_on) if goes_on < end else None
