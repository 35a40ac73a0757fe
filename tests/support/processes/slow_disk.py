"""`barnabas` after a restart of the machine, with a slow disk: each read of a log gives few bytes and takes 50 ms.

The disk is a fast one from the moment when there is a file beside the data directory, with ".fast" after its name.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from barnabas.cli.main import main
from barnabas.runtime.files import DiskFile, FileDisk
from barnabas.storage import replay

READ_S = 0.05
READ_BYTES = 16 * 1024
_pread = DiskFile.pread


def fast_from_now_on(data: Path) -> Path:
    """The file that makes the disk under a data directory a fast one."""
    return data.with_name(data.name + ".fast")


def slow_pread(file: DiskFile, size: int, offset: int) -> bytes:
    if file.path.startswith("t-") and file.path.endswith(".log") and not _fast.exists():
        time.sleep(READ_S)
    return _pread(file, size, offset)


if __name__ == "__main__":
    _fast = fast_from_now_on(Path(sys.argv[sys.argv.index("--data") + 1]))
    replay._SCAN_CHUNK = READ_BYTES  # of this process alone
    FileDisk.boot_id = property(lambda disk: "another boot")  # type: ignore[method-assign,assignment]  # this process alone
    setattr(DiskFile, "pread", slow_pread)  # noqa: B010  # mypy takes no assignment to a method
    main()
