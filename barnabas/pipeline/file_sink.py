"""FileSink: participant that stages Parquet files and moves them into place after the decision.
Files are in `_staging` (ignored by Spark) until the commit moves them; all processes share the storage. An object store
moves by a copy: a repeated commit copies the staged file again, or finds the mark of the finished one.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.errors import InvariantViolated
from barnabas.pipeline.decision_record import BatchDecision, PreparedPart
from barnabas.pipeline.decisions import BatchStart, CommitResult
from barnabas.pipeline.errors import writing_to
from barnabas.pipeline.parquet_part import ParquetPart, open_folder, part_name
from barnabas.pipeline.two_phase_commit import Part, Task, TwoPhaseCommitSink

STAGING = "_staging"
_DONE = ".done"


class FileSink(TwoPhaseCommitSink):
    """A folder of Parquet files as a participant.

    Args:
        sink_id: id of the sink; several sinks may write to one directory.
        path: the output folder, local or a URI; created if missing.

    Raises:
        PipelineError: the folder is not writable.
    """

    def __init__(self, sink_id: str, path: str) -> None:
        self.sink_id = sink_id
        self.name = f"files {path}"
        self._forgotten_before = ""
        with writing_to("files.path", path):
            self._folder = open_folder(path, "files.path")
            self.path = self._folder.root
            if not self._folder.exists(STAGING):
                self._folder.mkdir(STAGING)

    async def begin(self, task: Task) -> ParquetPart:
        name = part_name(task)
        with writing_to("files.path", self.path):
            file = self._folder.open(f"{STAGING}/{name}", create=True)
        return ParquetPart(PreparedPart(self.name, name, "", 0), file, self._folder, "files.path")

    async def pre_commit(self, part: Part) -> PreparedPart:
        if not isinstance(part, ParquetPart):
            raise InvariantViolated("a part of another participant")
        return await part.prepare()

    async def commit(self, handle: PreparedPart, decision: BatchDecision) -> CommitResult:
        mark = f"{STAGING}/{handle.key}{_DONE}"
        try:
            self._folder.rename(f"{STAGING}/{handle.key}", handle.key)
        except FileNotFoundError:
            there = self._folder.exists(mark) or self._folder.exists(handle.key)
            return CommitResult.COMMITTED if there else CommitResult.LOST
        done = self._folder.open(mark, create=True)
        await self._folder.sync([done])  # with the folders of both names
        done.close()
        self._forget_before(handle.key)
        return CommitResult.COMMITTED

    async def abort(self, handle: PreparedPart) -> None:
        self._folder.remove(f"{STAGING}/{handle.key}")

    async def list_open(self, start: BatchStart | None = None) -> Sequence[PreparedPart]:
        own = f"{self.sink_id}."
        names = [n for n in self._folder.listdir(STAGING) if n.startswith(own) and n.endswith(".parquet")]
        return [PreparedPart(self.name, n, "", 0) for n in names if start is None or f"-{start.driver}-" in n]

    def _forget_before(self, key: str) -> None:
        """Removes marks (`.done`) of earlier batches: their commits are not repeated after a later decision."""
        batch = key.partition("-")[0]
        if batch == self._forgotten_before:
            return
        self._forgotten_before = batch
        for name in self._folder.listdir(STAGING):
            if name.startswith(f"{self.sink_id}.") and name.endswith(_DONE) and name.partition("-")[0] < batch:
                self._folder.remove(f"{STAGING}/{name}")
