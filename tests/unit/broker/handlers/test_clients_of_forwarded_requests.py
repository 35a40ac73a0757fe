"""Every request that a handler forwards to the controller names its client: else it would have the permissions of the node."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import barnabas.broker.handlers

HANDLERS = sorted(Path(next(iter(barnabas.broker.handlers.__path__))).glob("*.py"))
OF_THE_NODE = {"ensure_topic in groups.py", "ensure_topic in transactions.py"}  # internal topics, as in Kafka


def is_controller(node: ast.expr) -> bool:
    """Whether an expression is a method of `needs.controller`."""
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "needs.controller"


def unnamed(source: str, name: str) -> list[str]:
    """The calls of the controller's methods, also by `partial`, without `access`."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        target = call.args[0] if ast.unparse(call.func) == "partial" and call.args else call.func
        if is_controller(target) and "access" not in {keyword.arg for keyword in call.keywords}:
            assert isinstance(target, ast.Attribute)
            found.append(f"{target.attr} in {name}")
    return found


@pytest.mark.parametrize("path", HANDLERS, ids=lambda path: path.name)
def test_a_forwarded_request_names_its_client(path: Path) -> None:
    assert set(unnamed(path.read_text(), path.name)) <= OF_THE_NODE


def test_a_request_without_its_client_is_found() -> None:
    source = "needs.controller.request(r, done)\npartial(needs.controller.alter_configs, r)\nneeds.controller.request(r, access=a)"
    assert unnamed(source, "x.py") == ["request in x.py", "alter_configs in x.py"]
