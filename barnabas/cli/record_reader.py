"""Reads records for `consume`, prints them, and commits what was printed: records whose last byte a completed write has passed on. After a failed or
cancelled write the first record not printed whole is committed.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from barnabas.cli.pipes import BlockOutput
from barnabas.cli.record_format import Read, Shown
from barnabas.cli.streams import OutputUnwritable
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import KafkaError
from barnabas.client.group.group import RebalanceListener
from barnabas.client.types import OffsetAndMetadata, TopicPartition, ValueRun

POLL_RECORDS: Final = 10_000
POLL_MS: Final = 250
COMMIT_EVERY_S: Final = 1.0
LAST_COMMIT_S: Final = 0.4  # after a signal: time for the last commit


class RecordReader:
    """Prints the records of a started consumer.

    Args:
        ends: the offset at which each partition ends; None: it does not end.
        left: the number of records to print.
        grouped: the consumer is a member of a group, and commits.
    """

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        output: BlockOutput,
        shown: Shown,
        *,
        ends: Mapping[TopicPartition, int] | None,
        left: int,
        grouped: bool,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._shown = shown
        self._ends = ends
        self._left = left
        self._grouped = grouped
        self._unprinted: dict[TopicPartition, int] = {}  # the first offset that is not printed, if below the position
        self._dirty = False  # records were printed since the last commit
        self._commit_at = 0.0

    async def read(self) -> None:
        """Prints records until the end or the number of records; without either limit, until it is cancelled.

        Raises OutputUnwritable: the reader of the output has ended, or the disk is full.
        """
        try:
            while self._left > 0 and not await self._at_end():
                polled = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=min(self._left, POLL_RECORDS))
                if polled:
                    await self._print([record for tp, records in polled.items() for record in self._kept(tp, records)])
                elif self._output.reader_gone():
                    raise OutputUnwritable(errno.EPIPE, "Broken pipe")
                self._commit_if_due()
        finally:
            await self._last_commit()

    async def before_revoke(self) -> None:
        """Commits before partitions go to another member."""
        await self._commit()

    def _kept(self, tp: TopicPartition, records: Sequence[Any]) -> Sequence[Any]:
        """The records before the end of their partition. A partition that has reached its end is read no further."""
        if self._ends is None or tp not in self._ends or _last_offset(records[-1]) < self._ends[tp]:
            return records
        end = self._ends[tp]
        self._consumer.pause(tp)
        self._unprinted[tp] = end
        before = [record for record in records if record.offset < end]
        return [record.part(0, end) if isinstance(record, ValueRun) else record for record in before]

    async def _at_end(self) -> bool:
        """Whether every partition that this consumer reads is at its end."""
        ends = self._ends
        if ends is None:
            return False
        mine = self._consumer.assignment()
        return bool(mine) and all([await self._consumer.position(tp) >= ends.get(tp, 0) for tp in sorted(mine)])

    async def _print(self, records: list[Read]) -> None:
        texts = self._shown(records)
        before = self._output.written
        try:
            await self._output.write(b"".join(texts))
        except BaseException:
            self._note_unprinted(records, texts, self._output.written - before)
            raise
        self._left -= len(records)
        self._dirty = True

    def _note_unprinted(self, records: list[Read], texts: list[bytes], written: int) -> None:
        """Notes the first record of each partition that was not printed whole."""
        for record, text in zip(records, texts, strict=True):
            written -= len(text)
            tp = TopicPartition(record.topic, record.partition)
            if written < 0 and tp not in self._unprinted:
                self._unprinted[tp] = record.offset
            elif written < 0:
                self._unprinted[tp] = min(self._unprinted[tp], record.offset)
        self._dirty = True

    # -- commits -------------------------------------------------------------------------------------------------------

    async def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata | int]:
        offsets: dict[TopicPartition, OffsetAndMetadata | int] = {}
        for tp in self._consumer.assignment():
            position = await self._consumer.position(tp)
            offsets[tp] = min(position, self._unprinted.get(tp, position))
        return offsets

    def _commit_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._grouped and self._dirty and now >= self._commit_at and not self._unprinted:
            self._commit_at = now + COMMIT_EVERY_S
            self._dirty = False
            self._consumer.commit_soon()

    async def _commit(self) -> None:
        if self._grouped and (self._dirty or self._unprinted):
            self._dirty = False
            await self._consumer.commit(await self._offsets() if self._unprinted else None)

    async def _last_commit(self) -> None:
        if not self._grouped:
            return
        self._dirty = True  # a commit in the background may not have ended
        try:
            async with asyncio.timeout(LAST_COMMIT_S if _cancelled() else None):
                await self._commit()
        except TimeoutError:
            print("barnabas consume: the last commit was not answered in time", file=sys.stderr)
        except KafkaError as error:
            print(f"barnabas consume: the last commit failed: {error}", file=sys.stderr)


def _last_offset(record: Read | ValueRun) -> int:
    return record.offset + (len(record.values) - 1 if isinstance(record, ValueRun) else 0)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class CommitsBeforeRevoke(RebalanceListener):
    """Commits what was printed before partitions are revoked."""

    reader: RecordReader | None = None

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Called before these partitions are revoked."""
        if self.reader is not None:
            await self.reader.before_revoke()

    async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        """Called after these partitions were lost: a commit would be refused."""


async def read_tail(
    consumer: Consumer[Any, Any], partitions: Sequence[TopicPartition], count: int, poll_ms: int = POLL_MS
) -> list[Read]:
    """The last `count` records of all partitions together, by their timestamps.

    Offsets without records (control records, aborted transactions, compaction) make it read further back.
    """
    earliest = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    found: list[list[Read]] = []
    for tp in partitions:
        span = count
        while True:
            start = max(earliest[tp], ends[tp] - span)
            records = await _between(consumer, tp, start, ends[tp], poll_ms)
            if len(records) >= count or start == earliest[tp]:
                found.append(records[-count:] if count else [])
                break
            span *= 4
    merged = heapq.merge(*found, key=lambda record: record.timestamp)
    return list(merged)[-count:] if count else []


async def _between(consumer: Consumer[Any, Any], tp: TopicPartition, start: int, end: int, poll_ms: int) -> list[Read]:
    consumer.assign([tp])
    consumer.seek(tp, start)
    records: list[Read] = []
    while await consumer.position(tp) < end:
        for polled in (await consumer.getmany(timeout_ms=poll_ms)).values():
            records += [record for record in polled if record.offset < end]
    return records
