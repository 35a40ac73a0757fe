"""Spark data source `barnabas`, registered by `barnabas.pipeline.session()`: `spark.read.format("barnabas")`.
Spark pickles it into planning workers, so it holds only its options; `source`, `stream` and `sink` do the work.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from barnabas.pipeline.errors import PipelineError, cause_first

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


def _sink() -> Any:
    try:
        return importlib.import_module("barnabas.pipeline.sink")
    except ModuleNotFoundError as error:
        raise PipelineError(
            "format",
            "barnabas",
            "use it for reading, and format 'kafka' for writing",
            "cannot be written in this version",
        ) from error


class BarnabasDataSource(DataSource):
    """A Spark data source for topics of Barnabas and of Apache Kafka 3.9 or newer."""

    @classmethod
    def name(cls) -> str:
        return "barnabas"

    @cause_first()
    def schema(self) -> StructType:
        """Columns of Spark's Kafka connector, or those of the option `columns`."""
        from barnabas.pipeline.source import schema_of

        return schema_of(self.options)

    @cause_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        from barnabas.pipeline.source import batch_reader

        return batch_reader(self.options, schema)

    @cause_first()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from barnabas.pipeline.stream import stream_reader

        return stream_reader(self.options, schema)

    @cause_first()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise PipelineError("mode", "overwrite", "write with mode 'append'", "cannot be had: a log only grows")
        writer: DataSourceWriter = _sink().batch_writer(self.options, schema)
        return writer

    @cause_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """`overwrite` (output mode complete) appends the whole result, as Spark's connector does."""
        writer: DataSourceStreamWriter = _sink().stream_writer(self.options, schema)
        return writer
