"""Refuses to start brokers with data directories where Python cannot serve them: on Windows.

Client commands work everywhere.

The file disk reads and writes at positions (`os.pread`), locks as Java does (`fcntl`) and syncs folders; Windows has none of them.
"""

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
