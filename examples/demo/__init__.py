"""The demonstrations of `make demo` and `make demo-spark`: exactly-once copies through crashes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def program(module: str, *arguments: str) -> list[str]:
    """The command line of a program of this folder; its process needs `environment()`."""
    return [sys.executable, "-P", "-m", f"examples.demo.{module}", *arguments]


def environment() -> dict[str, str]:
    """The environment of this process, in which Python finds this folder, wherever it runs."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
