"""The keys of what `--json` prints, and those that docs/cli.md lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def paths(document: Any, before: str = "") -> set[str]:
    """The paths of all values, as docs/cli.md writes them."""
    if isinstance(document, dict):
        return {path for key, value in document.items() for path in paths(value, f"{before}.{key}" if before else key)}
    if isinstance(document, list):
        return {path for value in document for path in paths(value, f"{before}[]")}
    return {before}


def documented() -> dict[str, set[str]]:
    """The keys of each command's JSON, from the table of docs/cli.md."""
    rows = re.findall(r"^\| `([a-z -]+)` \| (`.*`) \|$", PAGE.read_text().partition("## JSON")[2], re.MULTILINE)
    return {command: set(re.findall(r"`([^`]+)`", keys)) for command, keys in rows}


def fitting(found: set[str], known: set[str]) -> set[str]:
    """The paths with `*` in place of keys that vary."""
    patterns = {each: re.compile(re.escape(each).replace(r"\*", r".+")) for each in known}
    return {next((name for name, pattern in patterns.items() if pattern.fullmatch(path)), path) for path in found}
