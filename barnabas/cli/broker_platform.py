"""Refuses to start brokers on Windows, which lacks `os.pread`, `fcntl` and syncs of folders. Client commands work everywhere."""

from __future__ import annotations

import os
import sys


def brokers_refused(command: str) -> bool:
    """Whether brokers cannot run here; says so."""
    if hasattr(os, "pread"):
        return False
    print(
        f"barnabas {command}: brokers need Linux or macOS; on Windows run them in WSL or in a container. "
        "The client and the other commands work here.",
        file=sys.stderr,
    )
    return True
