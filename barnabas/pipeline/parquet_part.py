"""Parquet file of a task, in a local folder or on an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from barnabas.pipeline.decision_record import PreparedPart
from barnabas.pipeline.errors import PipelineError, writing_to
from barnabas.pipeline.two_phase_commit import Part, Task
from barnabas.runtime.files import FileDisk

if TYPE_CHECKING:
    import pyarrow as pa

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class StoredFile:
    """A file of a StoreFolder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def close(self) -> None:
        pass


class StoreFolder:
    """A folder of an object store (`s3://`, `gs://`, `abfss://`) or of HDFS, through the file systems of Arrow.

    A file is complete and durable when its writer closes it; until then it is empty, or its former content.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        import pyarrow.fs as fs

        self._fs = fs
        self.filesystem = filesystem
        self.root = root

    def exists(self, path: str) -> bool:
        return bool(self.filesystem.get_file_info(f"{self.root}/{path}").type != self._fs.FileType.NotFound)

    def size(self, path: str) -> int:
        return int(self.filesystem.get_file_info(f"{self.root}/{path}").size)

    def listdir(self, path: str) -> list[str]:
        chosen = self._fs.FileSelector(f"{self.root}/{path}", allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(chosen) if info.is_file)

    def mkdir(self, path: str) -> None:
        pass  # object stores have no folders, and HDFS creates them with their files

    def open(self, path: str, *, create: bool = False) -> Any:
        self.filesystem.open_output_stream(f"{self.root}/{path}").close()
        return StoredFile(path)

    def remove(self, *paths: str) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self.filesystem.delete_file(f"{self.root}/{path}")

    def rename(self, source: str, target: str) -> None:
        if not self.exists(source):
            raise FileNotFoundError(source)
        self.filesystem.move(f"{self.root}/{source}", f"{self.root}/{target}")

    async def sync(self, files: Sequence[Any]) -> None:
        pass


Folder = FileDisk | StoreFolder


def open_folder(path: str, option: str) -> Folder:
    """The folder at a local path or a URI; a local one is created if missing. Raises OSError, PipelineError."""
    if _URI.match(path) and not path.startswith("file:"):
        import pyarrow.fs as fs

        if re.match(r"\w+://[^/]*:[^/]*@", path):
            remedy = "leave it out, and give credentials as the store's clients read them, as by variables of the environment"
            raise PipelineError(option, None, remedy, "has a password")
        try:
            return StoreFolder(*fs.FileSystem.from_uri(path))
        except ValueError as error:
            remedy = "name a directory, or s3://BUCKET/…, gs://BUCKET/…, abfss://…, hdfs://…"
            raise PipelineError(option, path, remedy, f"cannot be opened ({error})") from error
    path = re.sub(r"^file:/*", "/", path)
    os.makedirs(path, exist_ok=True)  # with the modes of the umask: FileDisk itself creates private directories
    return FileDisk(path)


def part_name(task: Task) -> str:
    """Name of an attempt's file. A later batch may reuse the transactional id of an attempt, but not this name."""
    attempt = f"{task.start.driver}-{task.name.unique}"
    return f"{task.sink_id}.{task.batch:08d}-{task.name.partition:05d}-{attempt}.parquet"


class ParquetPart(Part):
    """One task's Parquet file.

    Args:
        handle: the part, without rows yet.
        file: the file in its folder.
        option: the option that names the folder, for errors.
    """

    def __init__(self, handle: PreparedPart, file: Any, folder: Folder, option: str) -> None:
        self.handle = handle
        self.file = file
        self._folder = folder
        self._option = option
        self._writer: Any = None

    async def write(self, batch: pa.RecordBatch) -> None:
        with writing_to(self._option, self._folder.root):
            if self._writer is None:
                import pyarrow.parquet as parquet

                filesystem = getattr(self._folder, "filesystem", None)
                where = f"{self._folder.root}/{self.file.path}"
                self._writer = parquet.ParquetWriter(where, batch.schema, filesystem=filesystem, compression="zstd")
            self._writer.write_batch(batch)
        self.handle = self.handle._replace(rows=self.handle.rows + batch.num_rows)

    async def prepare(self) -> PreparedPart:
        """Makes the file durable."""
        self.end()
        with writing_to(self._option, self._folder.root):
            await self._folder.sync([self.file])
        return self.handle

    def end(self) -> None:
        """Closes the file for writing, before its sync."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with writing_to(self._option, self._folder.root):
                writer.close()

    async def close(self) -> None:
        with suppress(PipelineError):  # an unfinished file is never read
            self.end()
        self.file.close()
