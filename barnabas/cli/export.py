"""`barnabas export`: writes topics to Parquet files, by a Spark batch job."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, local_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@local_command("export")
def export(
    topic: Annotated[tuple[str, ...], Parameter(help="Topics to write.")],
    *,
    to: Annotated[Path, Parameter(help="The directory for the files, new or empty.")],
    data: Annotated[
        tuple[Path, ...],
        Parameter(help="Data directory of a stopped broker, read instead of a cluster; may be repeated."),
    ] = (),
    format_: Annotated[Literal["parquet"], Parameter(name="--format", help="Format of the files.")] = "parquet",
    committed: Annotated[
        bool, Parameter(negative="--no-committed", help="Leave open and aborted transactions out.")
    ] = True,
    master: Annotated[str, Parameter(help="Spark's master: local[N] for N tasks at a time.")] = "local[2]",
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Write topics to Parquet files."""
    from barnabas.pipeline import session
    from barnabas.pipeline.export import export_directories, export_topics

    def spark() -> SparkSession:
        return session("barnabas-export", master=master)

    if data:
        done = export_directories(spark, data, topic, to, committed=committed)
    else:
        asyncio.run(connection.check())
        properties = {**connection.security, "request.timeout.ms": str(connection.timeout_ms)}
        done = export_topics(spark, connection.bootstrap, topic, to, committed=committed, properties=properties)
    for p in done.by_partition():
        counts = ((p.control, "control"), (p.aborted, "aborted"), (p.removed, "removed"))
        explained = [f"{count} {what}" for count, what in counts if count]
        less = f" ({', '.join(explained)})" if explained else ""
        print(f"{p.topic}-{p.partition}: offsets {p.start}..{p.end - 1}, {p.rows} rows{less}")
    for note in done.notes:
        print(note)
    files = sum(1 for part in done.parts if part.file)
    print(f"{done.rows} rows in {files} files in {done.to}: every offset is accounted for")
