"""Files with secrets: written whole, readable by their owner only."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(file: Path, data: str | bytes) -> None:
    """Writes atomically, readable by the owner only. Raises OSError."""
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
