"""Prints the names of the series that Grafana boards and Prometheus rules ask for, one a line: facts to compare with a scrape.

python docs/grafana/board_metrics.py BOARD.json RULES.yaml …
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

__all__ = ["asked"]

NAME: Final = re.compile(r"\b((?:kafka|barnabas|process|jvm|container|kubelet)_[a-z0-9_]+)\b(?=[\s{\[)<>!=*+-]|$)")
QUERY: Final = re.compile(r'"(?:expr|query|definition)"\s*:\s*"((?:[^"\\]|\\.)*)"|^\s*expr:\s*(.*)$', re.MULTILINE)


def asked(text: str) -> set[str]:
    """The names in the queries of a board or of rules. Names of variables and labels are not among them: no query begins with them."""
    found: set[str] = set()
    for board, rule in QUERY.findall(text):
        query = re.sub(r"\{[^}]*\}", "{}", (board or rule).replace('\\"', '"'))
        query = re.sub(r"\b(?:by|without)\s*\([^)]*\)", "", query)
        query = re.sub(r"(label_values\([^,)]*),[^)]*\)", r"\1)", query)
        found.update(NAME.findall(query))
    return found


if __name__ == "__main__":
    names = {name for path in sys.argv[1:] for name in asked(Path(path).read_text(encoding="utf-8"))}
    sys.stdout.write("".join(f"{name}\n" for name in sorted(names)))
