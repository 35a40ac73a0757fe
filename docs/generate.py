#!/usr/bin/env python3
"""Draws docs/coverage.md and docs/file-map.md from the code: the APIs served, the states of the machines, the modules.

Run by `make docs`. `tests/unit/test_docs.py` fails when a document no longer says what the code says.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from barnabas.broker.coordinator.group_state import VALID_PREVIOUS as GROUP_STATES
from barnabas.broker.coordinator.transaction_state import VALID_PREVIOUS as TRANSACTION_STATES
from barnabas.broker.quorum.roles import VALID_PREVIOUS as QUORUM_ROLES
from barnabas.client.transactions import VALID_PREVIOUS as PRODUCER_STATES
from barnabas.protocol.registry import API

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "barnabas"

HEAD = """# Coverage

Drawn from the code by `make docs`; don't edit. How each API behaves and where it differs from Kafka stands at the top of its handler module, `barnabas/broker/handlers/<family>.py`.

## APIs served

Versions as in Apache Kafka 4.3.1, except where "advertised" says otherwise. Flexible: from which version on compact encodings and tagged fields are used.

| key | API | versions served | advertised | flexible | listeners | family |
|---|---|---|---|---|---|---|
"""


def span(versions: tuple[int, int]) -> str:
    return str(versions[0]) if versions[0] == versions[1] else f"{versions[0]}–{versions[1]}"


def apis() -> str:
    rows = []
    for api in sorted(API.values(), key=lambda api: api.key):
        flexible = "" if api.flexible_since is None else f"{api.flexible_since}+"
        advertised = "" if api.advertised == api.versions else span(api.advertised)
        listeners = ", ".join(sorted(api.listeners))
        cells = [str(api.key), api.name, span(api.versions), advertised, flexible, listeners, api.family]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def diagram(title: str, source: str, valid_previous: Mapping[Enum, frozenset[Enum]]) -> str:
    """A state diagram in Mermaid, which code hosts draw."""
    edges = [
        f"    {before.name} --> {state.name}"
        for state, previous in valid_previous.items()
        for before in sorted(previous, key=lambda s: list(type(s)).index(s))
    ]
    lines = "\n".join(edges)
    return f"\n## {title}\n\nFrom `{source}`.\n\n```mermaid\nstateDiagram-v2\n{lines}\n```\n"


def coverage() -> str:
    return (
        HEAD
        + apis()
        + diagram(
            "States of a transactional id", "barnabas/broker/coordinator/transaction_state.py", TRANSACTION_STATES
        )
        + diagram("States of a classic group", "barnabas/broker/coordinator/group_state.py", GROUP_STATES)
        + diagram("Roles in the metadata quorum", "barnabas/broker/quorum/roles.py", QUORUM_ROLES)
        + diagram("States of the bundled producer", "barnabas/client/transactions.py", PRODUCER_STATES)
    )


def file_map() -> str:
    """Every module with the first line of its docstring."""
    lines = ["# File map", "", "Drawn from the modules' docstrings by `make docs`; don't edit."]
    folder = None
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda p: (p.parent.parts, p.name)):
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"## `{folder.relative_to(PACKAGE.parent)}/`", ""]
        if path.name != "__init__.py":
            lines.append(f"- `{path.name}` {doc.splitlines()[0] if doc else ''}")
        elif doc:
            lines += [doc.splitlines()[0], ""]
    return "\n".join(lines) + "\n"


DOCUMENTS = {"coverage.md": coverage, "file-map.md": file_map}


def main() -> None:
    stale = [
        name for name, draw in DOCUMENTS.items() if not (HERE / name).exists() or (HERE / name).read_text() != draw()
    ]
    if "--check" in sys.argv:
        sys.exit(f"{', '.join(stale)} stale in docs/: run make docs" if stale else 0)
    for name in stale:
        (HERE / name).write_text(DOCUMENTS[name]())


if __name__ == "__main__":
    main()
