"""The log lines of a node, as the code has them: a template for each call of a logger, and where it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "barnabas"
FOLDERS = ("broker", "cli", "runtime", "storage")
METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log", "log_change"})
# Passes on the template of its caller, whose calls are found themselves.
PASSED_ON = frozenset({"broker/replica/core/fetch_plan.py"})
_PLACEHOLDER = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[sdrf]")


def shown(template: str) -> str:
    """A template as documents show it: the keys without their placeholders."""
    return _PLACEHOLDER.sub("", template).strip()


def _is_log(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("log", "_log", "state_log", "limited_log", "_limited_log")


def templates() -> Iterator[tuple[str, str | None]]:
    """(place, template) of each log line; None for a template that is not constant."""
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            place = str(path.relative_to(PACKAGE))
            for node in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                method, base = node.func.attr, node.func.value
                if method not in METHODS or not (_is_log(base) or method == "log_change"):
                    continue
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                if texts or place not in PASSED_ON:
                    yield f"{place}:{node.lineno}", texts[0] if texts else None
