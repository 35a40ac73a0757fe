"""The progress bar of `produce`: on a terminal, for files and pipes that take longer than a second."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_AFTER_S: Final = 0.5
EVERY_S: Final = 0.1


class InputProgress:
    """Shows on stderr how much of the input was read, if stderr is a terminal and the input is not. `files`: "-" is standard input."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._read = 0
        self._total: int | None = None
        self._next = time.monotonic() + SHOWN_AFTER_S
        self._shown = sys.stderr.isatty() and not (Path("-") in files and sys.stdin.isatty())
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._shown:
            self._total = _total(self._files)
        elif sys.stderr.isatty():
            print("each line becomes a record; Ctrl-D ends the input", file=sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._read)
            self._progress.stop()

    def advance(self, count: int) -> None:
        """Counts bytes that were read."""
        self._read += count
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        if self._progress is None:
            self._begin()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._read)
            self._progress.refresh()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(file=sys.stderr), auto_refresh=False, transient=True)
        self._progress.start()
        self._task = self._progress.add_task("", total=self._total)


def _total(files: Sequence[Path]) -> int | None:
    """The size of all files; None if one of them is not a regular file."""
    total = 0
    for path in files:
        try:
            status = os.fstat(sys.stdin.fileno()) if path == Path("-") else path.stat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total
