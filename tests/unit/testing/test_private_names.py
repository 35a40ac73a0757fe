"""The test kit uses the public names of the bundled client only."""

from __future__ import annotations

import ast
from pathlib import Path

import barnabas.testing

KIT = Path(barnabas.testing.__file__).parent
CLIENTS = {"admin", "producer", "consumer"}


def _private_uses(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id in CLIENTS:
                found.append(f"{path.name}:{node.lineno}: {owner.id}.{node.attr}")
    return found


def test_no_private_name_of_a_client_is_used() -> None:
    assert [use for path in sorted(KIT.rglob("*.py")) for use in _private_uses(path)] == []
