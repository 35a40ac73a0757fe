"""The `barnabas` command as a process that counts what its clean stop changes on disk, and may kill itself at one of the changes.

Called as `python -m tests.support.processes.stopping_broker serve … --data FOLDER …`. Files beside FOLDER, with its name and a suffix:

- `.kill-at`: a number: that many changes of the stop pass, and the process kills itself by SIGKILL in place of the next one; or a path:
  the process kills itself in place of the first change of this file.
- `.changes`: written at the end of a stop: the number of its changes.
- `.read`: how many bytes of the topics' logs the process has read since its start, each byte once; written after each read.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from barnabas.broker.node import Node
from barnabas.cli.main import main
from barnabas.runtime.files import DiskFile, FileDisk

CHANGES = ((DiskFile, ("pwrite", "truncate")), (FileDisk, ("remove", "rename", "replace", "sync", "sync_now")))


def beside(data: Path, suffix: str) -> Path:
    """One of the files that the module docstring lists."""
    return data.with_name(data.name + suffix)


class Stop:
    """The changes of the stop, and the reads of records."""

    def __init__(self, data: Path) -> None:
        self.data = data
        order = beside(data, ".kill-at")
        self.kill_at = order.read_text() if order.exists() else None
        self.changes = -1  # -1 before the stop
        self.read: set[tuple[str, int]] = set()  # files with positions

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call; the one at which the process shall die kills it."""

        def counted(*arguments: Any, **named: Any) -> Any:
            if self.changes >= 0:
                if self.kill_at is not None and self.kill_at in (str(self.changes), _path(arguments)):
                    os.kill(os.getpid(), signal.SIGKILL)
                self.changes += 1
            return call(*arguments, **named)

        return counted

    def pread(self, file: DiskFile, size: int, offset: int) -> bytes:
        """A read of any file."""
        data = _pread(file, size, offset)
        if file.path.endswith(".log") and not file.path.startswith("__"):
            self.read.update((file.path, at) for at in range(offset, offset + len(data)))
            beside(self.data, ".read").write_text(str(len(self.read)))
        return data

    async def stop(self, node: Node) -> None:
        """A clean stop of the node."""
        self.changes = 0
        await _stop(node)
        beside(self.data, ".changes").write_text(str(self.changes))


def _path(arguments: Sequence[Any]) -> object:
    """The path of a change, by the arguments of the method."""
    return arguments[0].path if isinstance(arguments[0], DiskFile) else next(iter(arguments[1:]), None)


if __name__ == "__main__":
    _pread, _stop = DiskFile.pread, Node.stop
    stop = Stop(Path(sys.argv[sys.argv.index("--data") + 1]))
    beside(stop.data, ".read").write_text("0")
    for owner, names in CHANGES:
        for name in names:
            setattr(owner, name, stop.counted(getattr(owner, name)))
    setattr(DiskFile, "pread", lambda file, size, offset: stop.pread(file, size, offset))  # noqa: B010  # mypy takes no assignment to a method
    setattr(Node, "stop", lambda node: stop.stop(node))  # noqa: B010  # as above
    main()
