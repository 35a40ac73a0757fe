"""Where the package reads configuration keys, from its syntax trees.

A key counts as read where an accessor of a configuration (`get_int`, `topic_value`, …) is called with it: as a literal,
by a constant, by an f-string, or as one item of a literal that the same function walks over. A topic key also counts
where an attribute of LogConfig that carries it is read. A server key counts, too, where a topic key or a group key that
is read falls back on it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from barnabas.broker.config.table import GROUP_KEYS, TOPIC_KEYS
from barnabas.storage.log_config import LogConfig

ACCESSORS = {
    "file_of",
    "get_bool",
    "get_float",
    "get_int",
    "get_list",
    "get_str",
    "group_value",
    "list_of",
    "listener_value",
    "number",
    "text_of",
    "topic_value",
    "value",
}
TABLES = {"table.py", "topic_config.py", "log_config.py"}


def _trees(package: Path) -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(package.rglob("*.py"))]


def _constants(trees: list[tuple[Path, ast.Module]]) -> dict[str, set[str]]:
    """String constants of modules, by name; the same name may stand for one string in each of several modules."""
    found: dict[str, set[str]] = {}
    for _, tree in trees:
        for node in tree.body:
            target: ast.expr
            value: ast.expr | None
            if isinstance(node, ast.AnnAssign):
                target, value = node.target, node.value
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            else:
                continue
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                found.setdefault(target.id, set()).add(value.value)
    return found


def _named(node: ast.expr, constants: dict[str, set[str]]) -> Iterator[re.Pattern[str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.compile(re.escape(node.value))
    elif isinstance(node, ast.Name):
        for text in sorted(constants.get(node.id, ())):
            yield re.compile(re.escape(text))
    elif isinstance(node, ast.JoinedStr):
        parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[a-z.]+" for part in node.values]
        yield re.compile("".join(parts))
    elif isinstance(node, ast.IfExp):
        yield from _named(node.body, constants)
        yield from _named(node.orelse, constants)


def _read_names(trees: list[tuple[Path, ast.Module]]) -> list[re.Pattern[str]]:
    constants = _constants(trees)
    found: list[re.Pattern[str]] = []
    for path, tree in trees:
        in_table = path.name in TABLES
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                func = node.func
                name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
                if name == "partial" and isinstance(node.args[0], ast.Attribute):
                    name = node.args[0].attr  # partial(config.get_int, "key")
                if name in ACCESSORS:
                    for argument in node.args:
                        found += _named(argument, constants)
            elif isinstance(node, ast.Subscript) and not in_table and ast.unparse(node.value).endswith("_values"):
                found += _named(node.slice, constants)
    return found


def _attributes(trees: list[tuple[Path, ast.Module]]) -> set[str]:
    return {
        node.attr
        for path, tree in trees
        if path.name not in TABLES - {"log_config.py"}
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def read_keys(package: Path, server_keys: set[str]) -> tuple[set[str], set[str]]:
    """The server keys and the topic keys that the code of `package` reads."""
    trees = _trees(package)
    patterns, attributes = _read_names(trees), _attributes(trees)
    carried = {field.name.replace("_", "."): field.name for field in fields(LogConfig)}

    def named(key: str) -> bool:
        return any(pattern.fullmatch(key) for pattern in patterns)

    topic = {key for key in TOPIC_KEYS if named(key) or (key in carried and carried[key] in attributes)}
    server = {key for key in server_keys if named(key)}
    server |= {synonym for key in topic for synonym in TOPIC_KEYS[key].synonyms}
    for key in GROUP_KEYS:
        server |= {
            f"group.{key}",
            key.replace("consumer.", "group.consumer.min."),
            key.replace("consumer.", "group.consumer.max."),
        }
    return server, topic
