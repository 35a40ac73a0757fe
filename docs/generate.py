#!/usr/bin/env python3
"""Draws docs/coverage.md from the tables in the code: the APIs served and the states of the machines.

Run by `make docs`. `tests/unit/test_docs.py` fails when the document no longer says what the code says.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from barnabas.broker.coordinator.group_state import VALID_PREVIOUS as GROUP_STATES
from barnabas.broker.coordinator.transaction_state import VALID_PREVIOUS as TRANSACTION_STATES
from barnabas.client.transactions import VALID_PREVIOUS as PRODUCER_STATES
from barnabas.protocol.registry import API

TARGET = Path(__file__).parent / "coverage.md"

HEAD = """# Coverage

Drawn from the code by `make docs`; don't edit. How each API behaves and where it differs from Kafka stands at the top of its handler module, `barnabas/broker/handlers/<family>.py`.

## APIs served

Versions as in Apache Kafka 4.3.1, except where "advertised" says otherwise. Flexible: from which version on compact encodings and tagged fields are used.

| key | API | versions served | advertised | flexible | handler |
|---|---|---|---|---|---|
"""


def span(versions: tuple[int, int]) -> str:
    return str(versions[0]) if versions[0] == versions[1] else f"{versions[0]}–{versions[1]}"


def apis() -> str:
    rows = []
    for api in sorted(API.values(), key=lambda api: api.key):
        flexible = "" if api.flexible_since is None else f"{api.flexible_since}+"
        advertised = "" if api.advertised == api.versions else span(api.advertised)
        rows.append(f"| {api.key} | {api.name} | {span(api.versions)} | {advertised} | {flexible} | {api.family} |")
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


def document() -> str:
    return (
        HEAD
        + apis()
        + diagram(
            "States of a transactional id", "barnabas/broker/coordinator/transaction_state.py", TRANSACTION_STATES
        )
        + diagram("States of a classic group", "barnabas/broker/coordinator/group_state.py", GROUP_STATES)
        + diagram("States of the bundled producer", "barnabas/client/transactions.py", PRODUCER_STATES)
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == document() else "docs/coverage.md is stale: run make docs")
    TARGET.write_text(document())
