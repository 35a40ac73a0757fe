"""The documents that are drawn from the code say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_documents_are_fresh() -> None:
    check = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`((?:unit|process|simulation|clients|oracle|pipeline)/[\w/]+\.py)::(\w+)`", _text("proof.md"))
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^(?:async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)
    ]
    assert not missing


def _text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()
