"""`barnabas` on a machine that was started anew, with a disk that gives few bytes of a partition's log at once, in 10 ms."""

from __future__ import annotations

import time

from barnabas.cli.main import main
from barnabas.runtime.files import DiskFile, FileDisk
from barnabas.storage import replay

READ_S = 0.01
_pread = DiskFile.pread


def slow_pread(file: DiskFile, size: int, offset: int) -> bytes:
    if file.path.startswith("t-") and file.path.endswith(".log"):
        time.sleep(READ_S)
    return _pread(file, size, offset)


if __name__ == "__main__":
    replay._SCAN_CHUNK = 16 * 1024  # type: ignore[misc]  # this process alone
    FileDisk.boot_id = property(lambda disk: "another boot")  # type: ignore[method-assign,assignment]  # this process alone
    DiskFile.pread = slow_pread  # type: ignore[method-assign]  # this process alone
    main()
