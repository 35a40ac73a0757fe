"""Stream source: Spark's DataSourceStreamReader over `planning`, one per query in a worker on the driver.
Truncations below read or planned offsets are data loss, too: leader epochs in the checkpoint detect them (KIP-320).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from barnabas.client.types import TopicPartition
from barnabas.pipeline.discovery import Discovery, ask
from barnabas.pipeline.errors import PipelineError, cause_first
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import (
    OffsetRange,
    Offsets,
    TriggerDelay,
    epochs_from_json,
    from_json,
    limited,
    tasks_for,
    tasks_from_json,
    to_json,
)
from barnabas.pipeline.reading import read_ranges
from barnabas.pipeline.source import check_schema, planned

_log = logging.getLogger(__name__)
_SIZES_AGE_MAX_MS = 300_000


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over one subscription, which commits no offsets: the checkpoint holds the position.

    `options`, or why they are invalid, which the first call of Spark raises: PySpark hides an error of `streamReader`
    itself behind an UnboundLocalError.
    """

    def __init__(self, options: SourceOptions | PipelineError) -> None:
        self._parsed = options
        self._target: Offsets | None = None  # the last offsets to read, under Trigger.AvailableNow
        self._latest: Offsets | None = None
        self._epochs: Offsets = {}  # leader epochs of the last check; newer than those of the checkpoint
        self._record_bytes: dict[TopicPartition, float] = {}
        self._sizes_due_ms = 0  # monotonic: when sizes are asked again
        self._delay: TriggerDelay | None = None
        if isinstance(options, SourceOptions) and options.min_offsets_per_trigger is not None:
            self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay_ms)

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._parsed, PipelineError):
            raise self._parsed
        return self._parsed

    @cause_first()
    def initialOffset(self) -> dict[str, Any]:
        async def first_offsets(discovery: Discovery) -> dict[str, Any]:
            partitions = await discovery.partitions()
            firsts = await discovery.firsts(partitions)
            starts = await discovery.starts(partitions, firsts, await discovery.lasts(partitions))
            return to_json(starts, {**discovery.epochs(partitions), **self._options.start.epochs})

        return ask(self._options, first_offsets)

    @cause_first()
    def getDefaultReadLimit(self) -> ReadLimit:
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    @cause_first()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = ask(self._options, self._last_offsets)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else to_json(self._latest)

    @cause_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = from_json(start)

        async def end_of_batch(discovery: Discovery) -> dict[str, Any]:
            ends = self._target
            if ends is None:
                ends = self._latest = await discovery.lasts(await discovery.partitions(begun))
            else:
                self._latest = ends
            new = [tp for tp in ends if tp not in begun]
            known = begun | (await discovery.firsts(new) if new else {})
            await self._check_truncated(discovery, {tp: offset for tp, offset in begun.items() if tp in ends}, start)
            self._epochs = discovery.epochs(ends)
            ends = self._going_on(known, ends)
            if not self._admits(limit, sum(ends[tp] - known[tp] for tp in ends), discovery.now_ms):
                return start
            rows = getattr(limit, "max_rows", None)
            if rows is not None:
                ends = limited(known, ends, rows)
            if ends == begun:
                return start  # the same text: new epochs alone must not start a batch
            return to_json(ends, self._epochs, await self._tasks(discovery, known, ends))

        return ask(self._options, end_of_batch)

    @cause_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ends = from_json(start), from_json(end)

        async def check(discovery: Discovery) -> Offsets:
            there = dict.fromkeys(await discovery.partitions(ends))
            firsts = await discovery.firsts([tp for tp in ends if tp in there])
            await self._check_truncated(discovery, {tp: ends[tp] for tp in firsts}, end)
            self._epochs = discovery.epochs(firsts)
            return self._starts(begun, ends, firsts)

        if all(begun.get(tp) == offset for tp, offset in ends.items()):
            return []
        starts = ask(self._options, check)
        ranges = [OffsetRange(*tp, starts[tp], ends[tp], self._epochs[tp]) for tp in sorted(starts)]
        return planned(self._options, ranges, tasks_from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with cause_first():
            yield from read_ranges(self._options, partition.value)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _admits(self, limit: ReadLimit, rows: int, now_ms: int) -> bool:
        """Whether a batch with this number of offsets may begin. Trigger.AvailableNow and Once read all that is available."""
        if self._delay is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return True
        return self._delay.admits(rows, now_ms)

    async def _tasks(self, discovery: Discovery, known: Offsets, ends: Offsets) -> int | None:
        """The number of tasks for a batch; None without sharing."""
        if not self._options.shares_tasks:
            return None
        if discovery.now_ms >= self._sizes_due_ms:
            self._record_bytes = await discovery.record_bytes(ends)
            self._sizes_due_ms = discovery.now_ms + _SIZES_AGE_MAX_MS
        ranges = [OffsetRange(*tp, known[tp], ends[tp]) for tp in ends]
        return tasks_for(ranges, self._record_bytes, self._options.max_partitions)

    async def _last_offsets(self, discovery: Discovery) -> Offsets:
        return await discovery.lasts(await discovery.partitions())

    async def _check_truncated(self, discovery: Discovery, seen: Offsets, checkpoint: Mapping[str, Any]) -> None:
        """Reports logs that were truncated below planned or read offsets, even if they have grown again."""
        epochs = epochs_from_json(checkpoint) | self._epochs
        for tp, end in (await discovery.truncated(seen, epochs)).items():
            self._lost(
                tp, f"was truncated to offset {end}, and offsets up to {seen[tp] - 1} were read or planned already"
            )

    def _going_on(self, known: Offsets, ends: Offsets) -> Offsets:
        """End offsets for partitions read up to `known`, never before that."""
        found = {tp: max(known.get(tp, 0), end) for tp, end in ends.items()}
        for tp, offset in known.items():
            if tp not in ends:
                self._lost(tp, f"is gone, with everything from offset {offset} on")
            elif ends[tp] < offset:
                self._lost(tp, f"ends at offset {ends[tp]}, and was read up to {offset} already")
                found[tp] = ends[tp]
        return found

    def _starts(self, begun: Offsets, ends: Offsets, firsts: Offsets) -> Offsets:
        """Start of a batch: the end of the last one, or the first record of a new partition."""
        starts = {}
        for tp, end in ends.items():
            first = firsts.get(tp)
            if first is None:
                self._lost(tp, f"is gone, with offsets {begun.get(tp, 0)} to {end - 1}")
                continue
            start = begun.get(tp, 0)  # a new partition begins at 0: records missing from there are lost
            if start < first and start < end:
                self._lost(tp, f"has lost offsets {start} to {min(first, end) - 1}")
            starts[tp] = max(start, first)
        for tp, start in begun.items():
            if tp not in ends:
                self._lost(tp, f"is gone, with everything from offset {start} on")
        return {tp: start for tp, start in starts.items() if start < ends[tp]}

    def _lost(self, tp: TopicPartition, what: str) -> None:
        problem = f"partition {tp.partition} of {tp.topic!r} {what}"
        if self._options.fail_on_data_loss:
            raise PipelineError(
                "failOnDataLoss",
                "true",
                "keep records longer than reading takes (retention.ms), or set it to 'false' to continue without them",
                f"stops the query: {problem}",
            )
        _log.warning("%s", problem)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """A stream of the topics that the options select; its first call raises PipelineError for an invalid one."""
    try:
        check_schema(options, schema)
        return StreamReader(SourceOptions.parse(options, streaming=True))
    except PipelineError as error:
        return StreamReader(error)
