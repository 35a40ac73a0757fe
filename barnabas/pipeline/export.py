"""Export of topics to Parquet by a Spark batch job, from a running cluster or stopped brokers' log directories.
One task and file per partition or segment. The export is verified: every offset must be accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from barnabas.client.errors import KafkaError
from barnabas.errors import RemoteProtocolError
from barnabas.pipeline.columns import COLUMNS, Piece, arrow_schema, decode
from barnabas.pipeline.discovery import ask, plan_batch
from barnabas.pipeline.errors import PipelineError, writing_to
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import OffsetRange, Pushdown
from barnabas.pipeline.reading import LeftOut, read_ranges
from barnabas.pipeline.segments import (
    Aborted,
    Segment,
    SegmentScan,
    chunks_of,
    decided,
    lock_directory,
    newest_copy,
    scan_segment,
    segments_of,
)
from barnabas.runtime.files import FileDisk


class Part(NamedTuple):
    """Result of a range of offsets: one file, or none if the range has no rows."""

    topic: str
    partition: int
    start: int
    end: int  # exclusive
    rows: int
    control: int  # markers of transactions and other control records
    aborted: int  # records of aborted transactions
    file: str  # name in the target directory; "" without a file

    @property
    def removed(self) -> int:
        """Number of offsets without a record: removed by compaction, or never used."""
        return self.end - self.start - self.rows - self.control - self.aborted


@dataclass(frozen=True)
class Exported:
    """A finished export."""

    to: Path
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()  # messages for the user: open transactions, logs with a damaged end

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def by_partition(self) -> list[Part]:
        """The sum of the parts of each partition."""
        found: dict[tuple[str, int], Part] = {}
        for part in self.parts:
            key = (part.topic, part.partition)
            have = found.get(key)
            found[key] = (
                part._replace(file="")
                if have is None
                else have._replace(
                    start=min(have.start, part.start),
                    end=max(have.end, part.end),
                    rows=have.rows + part.rows,
                    control=have.control + part.control,
                    aborted=have.aborted + part.aborted,
                )
            )
        return [found[key] for key in sorted(found)]


def export_topics(
    spark: Callable[[], SparkSession],
    bootstrap: str,
    topics: Sequence[str],
    to: str | Path,
    *,
    committed: bool = True,
    properties: Mapping[str, str] | None = None,
) -> Exported:
    """Exports every record of the topics, up to their present ends, from a running cluster.

    Args:
        spark: returns the session; called after all checks that do not need it.
        to: a directory that does not exist or is empty.
        committed: skip open and aborted transactions.
        properties: Kafka's client properties of TLS and SASL.

    Raises:
        PipelineError: topics, cluster or directory are unusable, or the verification failed.
    """
    target = _target(to)
    options = SourceOptions.parse(
        {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": ",".join(topics),
            "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
            "includeHeaders": "true",
            **{f"kafka.{name}": value for name, value in (properties or {}).items()},
        },
        streaming=False,
    )
    ranges = ask(options, lambda discovery: plan_batch(discovery, Pushdown()))
    parts = _run(spark(), ranges, lambda wanted: _export_range(options, wanted, str(target)))
    return _finished(target, parts)


def export_directories(
    spark: Callable[[], SparkSession],
    roots: Sequence[str | Path],
    topics: Sequence[str],
    to: str | Path,
    *,
    committed: bool = True,
) -> Exported:
    """Exports every record of the topics in log directories of stopped brokers, with one task per segment.

    Reads the newest copy of a partition in several directories (see `newest_copy`). Arguments as of `export_topics`.

    Raises:
        PipelineError: a broker runs on a directory; topics or directories are unusable; the verification failed.
    """
    target = _target(to)
    with ExitStack() as locks:
        segments: list[Segment] = []
        for root in dict.fromkeys(str(Path(root).resolve()) for root in roots):
            if not Path(root, "meta.properties").is_file():
                raise PipelineError("data", root, "give a broker's data directory", "has no meta.properties")
            disk = FileDisk(root)
            locks.callback(lock_directory(disk, root).release)
            segments += segments_of(disk, root, topics)
        missing = [topic for topic in topics if all(segment.topic != topic for segment in segments)]
        if missing:
            raise PipelineError(
                "topic",
                ", ".join(missing),
                "name a topic whose partitions are in these directories",
                f"is not in {', '.join(str(root) for root in roots)}",
            )
        session = spark()
        scans = newest_copy(_run(session, segments, _scan))
        notes = []
        work: list[tuple[SegmentScan, int, tuple[Aborted, ...] | None]] = []
        for key in sorted({(s.segment.topic, s.segment.partition) for s in scans}):
            mine = [s for s in scans if (s.segment.topic, s.segment.partition) == key]
            ends = decided(mine)
            end = mine[-1].next_offset
            if mine[-1].cut_bytes:
                notes.append(
                    f"{key[0]}-{key[1]}: {mine[-1].cut_bytes} bytes behind offset {end - 1} are no whole batch"
                )
            if committed and ends.first_open is not None:
                notes.append(
                    f"{key[0]}-{key[1]}: a transaction is open from offset {ends.first_open} on, up to {end - 1}"
                )
                end = ends.first_open
            work += [(each, end, ends.aborted if committed else None) for each in mine]
        parts = _run(session, work, lambda each: _export_segment(each, str(target)))
    return _finished(target, [part for part in parts if part.start < part.end], notes)


# -- on the driver -----------------------------------------------------------------------------------------------------


def _target(to: str | Path) -> Path:
    target = Path(to).absolute()
    with writing_to("to", str(to)):
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise PipelineError("to", str(to), "name a new directory, or empty it", "is not empty")
        probe = target / ".probe"
        probe.touch()
        probe.unlink()
    return target


def _run(spark: SparkSession, work: Sequence[Any], task: Callable[[Any], Any]) -> list[Any]:
    """Runs one Spark task per piece of work. Raises the first PipelineError without Spark's wrapper."""
    if not work:
        return []
    results = spark.sparkContext.parallelize(work, len(work)).map(lambda piece: _told(task, piece)).collect()
    for result in results:
        if isinstance(result, PipelineError):
            raise result
    return results


def _told(task: Callable[[Any], Any], piece: Any) -> Any:
    try:
        return task(piece)
    except PipelineError as error:
        return error
    except KafkaError as error:
        where = f"{error.topic}-{error.partition}" if error.topic is not None else None
        return PipelineError("topic", where, "see what is wrong with it, and run the export again", str(error))


def _finished(target: Path, parts: Iterable[Part], notes: Iterable[str] = ()) -> Exported:
    """Compares the tasks' counts with the written files. Raises PipelineError if they differ."""
    done = Exported(target, tuple(parts), tuple(notes))
    for part in done.parts:
        written = pq.read_metadata(target / part.file).num_rows if part.file else 0
        if written != part.rows:
            raise PipelineError(
                "to", str(target / part.file), "run the export again", f"has {written} rows where {part.rows} were read"
            )
        if part.removed < 0:
            raise PipelineError(
                "topic",
                f"{part.topic}-{part.partition}",
                "inspect the log with `barnabas dump`",
                f"has more records than the offsets {part.start} to {part.end - 1}",
            )
    (target / "_SUCCESS").touch()
    return done


# -- in tasks ----------------------------------------------------------------------------------------------------------


def _export_range(options: SourceOptions, wanted: OffsetRange, target: str) -> Part:
    left_out = LeftOut()
    rows, file = _write(target, wanted, read_ranges(options, [wanted], left_out))
    return Part(*wanted[:4], rows, left_out.control, left_out.aborted, file)


def _scan(segment: Segment) -> SegmentScan:
    return scan_segment(FileDisk(segment.root), segment)


def _export_segment(piece: tuple[SegmentScan, int, tuple[Aborted, ...] | None], target: str) -> Part:
    wanted, end, aborted = piece
    segment = wanted.segment
    start = max(wanted.first_offset, segment.log_start)
    reach = OffsetRange(segment.topic, segment.partition, start, max(start, min(wanted.next_offset, end)))
    left_out = LeftOut()

    def tables() -> Iterator[Any]:
        for chunk in chunks_of(FileDisk(segment.root), wanted, reach.start, reach.end, aborted):
            left_out.control += chunk.control
            left_out.aborted += chunk.aborted
            table = decode([Piece(chunk, reach.start, reach.end, reach.topic, reach.partition)], COLUMNS)
            if table is not None:
                yield table

    try:
        rows, file = _write(target, reach, tables())
    except RemoteProtocolError as error:
        raise PipelineError(
            "data", f"{segment.root}/{segment.path}", "inspect it with `barnabas dump`", f"cannot be read: {error}"
        ) from error
    return Part(*reach[:4], rows, left_out.control, left_out.aborted, file)


def _write(target: str, wanted: OffsetRange, tables: Iterable[Any]) -> tuple[int, str]:
    """Writes the rows to a file; returns their number and the file's name ("" without rows)."""
    name = f"{wanted.topic}-{wanted.partition}-{wanted.start:020d}.parquet"
    aside = Path(target, f".{name}.{_attempt()}")
    writer = None
    rows = 0
    try:
        for table in tables:
            with writing_to("to", target):
                if writer is None:
                    writer = pq.ParquetWriter(aside, arrow_schema(COLUMNS), compression="zstd")
                writer.write_batch(table)
            rows += table.num_rows
        if writer is None:
            return 0, ""
        with writing_to("to", target):
            writer.close()
            aside.replace(Path(target, name))
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return rows, name


def _attempt() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return "0" if context is None else str(context.taskAttemptId())
