"""FileSink: participant that stages Parquet files and moves them into place after the decision.
Files are in `_staging` (ignored by Spark) until the commit renames them; all processes share the file system.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from barnabas.errors import InvariantViolated
from barnabas.pipeline.decision_record import PreparedPart
from barnabas.pipeline.decisions import BatchStart, CommitResult
from barnabas.pipeline.errors import PipelineError, writing_to
from barnabas.pipeline.two_phase_commit import Part, Task, TwoPhaseCommitSink
from barnabas.ports import Disk, File
from barnabas.runtime.files import FileDisk

if TYPE_CHECKING:
    import pyarrow as pa

STAGING = "_staging"
_DONE = ".done"


class FilePart(Part):
    """One task's file."""

    def __init__(self, handle: PreparedPart, file: File, folder: str) -> None:
        self.handle = handle
        self.file = file
        self.folder = folder
        self._writer: Any = None

    async def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            import pyarrow.parquet as parquet

            with writing_to("files.path", self.folder):
                self._writer = parquet.ParquetWriter(
                    f"{self.folder}/{self.file.path}", batch.schema, compression="zstd"
                )
        with writing_to("files.path", self.folder):
            self._writer.write_batch(batch)
        self.handle = self.handle._replace(rows=self.handle.rows + batch.num_rows)

    def end(self) -> None:
        """Closes the file for writing, before its sync."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with writing_to("files.path", self.folder):
                writer.close()

    async def close(self) -> None:
        with suppress(PipelineError):  # an unfinished file is never read
            self.end()
        self.file.close()


class FileSink(TwoPhaseCommitSink):
    """A directory of Parquet files as a participant.

    Args:
        sink_id: id of the sink; several sinks may write to one directory.
        path: the output directory; created if missing.

    Raises:
        PipelineError: the directory is not writable.
    """

    def __init__(self, sink_id: str, path: str, *, disk: Disk | None = None) -> None:
        self.sink_id = sink_id
        self.name = f"files {path}"
        self._forgotten_before = ""
        with writing_to("files.path", path):
            if disk is None:
                # with the modes of the umask: FileDisk itself creates private directories
                os.makedirs(path, exist_ok=True)
            self._disk: Disk = FileDisk(path) if disk is None else disk
            self.path = self._disk.root
            if not self._disk.exists(STAGING):
                self._disk.mkdir(STAGING)

    async def begin(self, task: Task) -> FilePart:
        # A later batch may reuse the transactional id of an attempt, but not the name of a file.
        attempt = f"{task.start.driver}-{task.name.unique}"
        name = f"{self.sink_id}.{task.batch:08d}-{task.name.partition:05d}-{attempt}.parquet"
        staged = f"{STAGING}/{name}"
        with writing_to("files.path", self.path):
            file = self._disk.open(staged, create=True)
        return FilePart(PreparedPart(self.name, name, "", 0), file, self.path)

    async def pre_commit(self, part: Part) -> PreparedPart:
        if not isinstance(part, FilePart):
            raise InvariantViolated("a part of another participant")
        part.end()
        with writing_to("files.path", self.path):
            await self._disk.sync([part.file])
        return part.handle

    async def commit(self, handle: PreparedPart, next_batch: int) -> CommitResult:
        mark = f"{STAGING}/{handle.key}{_DONE}"
        try:
            self._disk.rename(f"{STAGING}/{handle.key}", handle.key)
        except FileNotFoundError:
            there = self._disk.exists(mark) or self._disk.exists(handle.key)
            return CommitResult.COMMITTED if there else CommitResult.LOST
        done = self._disk.open(mark, create=True)
        await self._disk.sync([done])  # with the folders of both names
        done.close()
        self._forget_before(handle.key)
        return CommitResult.COMMITTED

    async def abort(self, handle: PreparedPart) -> None:
        self._disk.remove(f"{STAGING}/{handle.key}")

    async def list_open(self, start: BatchStart | None = None) -> Sequence[PreparedPart]:
        own = f"{self.sink_id}."
        names = [n for n in self._disk.listdir(STAGING) if n.startswith(own) and n.endswith(".parquet")]
        return [PreparedPart(self.name, n, "", 0) for n in names if start is None or f"-{start.driver}-" in n]

    def _forget_before(self, key: str) -> None:
        """Removes marks (`.done`) of earlier batches: their commits are not repeated after a later decision."""
        batch = key.partition("-")[0]
        if batch == self._forgotten_before:
            return
        self._forgotten_before = batch
        for name in self._disk.listdir(STAGING):
            if name.startswith(f"{self.sink_id}.") and name.endswith(_DONE) and name.partition("-")[0] < batch:
                self._disk.remove(f"{STAGING}/{name}")
