"""Batch source: Spark's DataSourceReader over `planning` (offsets) and `reading` (records)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.client.types import TopicPartition
from barnabas.pipeline.discovery import Discovery, ask, plan_batch
from barnabas.pipeline.errors import PipelineError, cause_first
from barnabas.pipeline.options import SourceOptions, columns_of, has_end
from barnabas.pipeline.planning import OffsetRange, Pushdown, shared, split, tasks_for
from barnabas.pipeline.reading import read_ranges

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def schema_of(options: Mapping[str, str]) -> StructType:
    """Columns that the options select, with the types of Spark's Kafka connector. Raises PipelineError.

    Checks all options except those that only streams or only batches reject: in `load()` Spark does not say which is
    meant.
    """
    SourceOptions.parse(options, streaming=not has_end(options))
    return StructType([StructField(name, _TYPES[name]) for name in columns_of(options)])


def check_schema(options: Mapping[str, str], schema: StructType) -> None:
    """Raises PipelineError if the user's schema differs from the source's."""
    own = schema_of(options)
    if schema != own:
        raise PipelineError(
            "schema",
            schema.simpleString(),
            "leave schema() out, choose by the option 'columns', and convert by select()",
            f"is not that of the rows ({own.simpleString()})",
        )


class RangesPartition(InputPartition):
    """Ranges of offsets, for one task."""

    def __init__(self, wanted: Sequence[OffsetRange]) -> None:
        super().__init__(wanted)


def planned(options: SourceOptions, ranges: Sequence[OffsetRange], tasks: int | None) -> list[InputPartition]:
    """The Spark tasks that read the ranges; `tasks` as of `shared`."""
    cut = split(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangesPartition(each) for each in shared(cut, tasks)]


class _PushFilters:
    """`pushFilters` of the batch reader.

    Spark rejects a reader that overrides this method while spark.sql.python.filterPushdown.enabled is off, the default.
    It detects that by the method's `__func__`, which this object lacks: the source works on every session.
    """

    def __init__(self, push: Callable[[list[Filter]], list[Filter]]) -> None:
        self._push = push
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class BatchReader(DataSourceReader):
    """One read of topics, between the offsets of the options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Pushdown()
        self.pushFilters: Any = _PushFilters(self._pushed.push)

    @cause_first()
    def partitions(self) -> list[InputPartition]:
        async def plan(discovery: Discovery) -> tuple[list[OffsetRange], int | None]:
            ranges = await plan_batch(discovery, self._pushed)
            if not self._options.shares_tasks:
                return ranges, None
            sizes = await discovery.record_bytes([TopicPartition(r.topic, r.partition) for r in ranges])
            return ranges, tasks_for(ranges, sizes, self._options.max_partitions)

        return planned(self._options, *ask(self._options, plan)) or [RangesPartition([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with cause_first():
            yield from read_ranges(self._options, partition.value)


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """A reader of the records that the options select. Raises PipelineError."""
    check_schema(options, schema)
    return BatchReader(SourceOptions.parse(options, streaming=False))
