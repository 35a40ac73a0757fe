"""Log lines have constant templates with keys; docs/operations.md names loggers and lines as the code has them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.loggers import LOGGERS
from barnabas.runtime.log_lines import RESERVED, SUPPRESSED, placeholders

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "barnabas"
FOLDERS = ("broker", "cli", "runtime", "storage")
METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log", "log_change"})
LOGS = frozenset({"log", "_log", "state_log", "limited_log", "_limited_log"})
# Passes on the template of its caller, whose calls are found themselves.
PASSED_ON = frozenset({"broker/replica/core/fetch_plan.py"})
TEXT = (ROOT / "docs" / "operations.md").read_text()
SECTION = TEXT.partition("## Log lines")[2].partition("\n## ")[0]
EXPLAINED = set(re.findall(r"^\| `([^`]+)` \| (?:DEBUG|INFO|WARNING|ERROR|CRITICAL)", SECTION, re.MULTILINE))
_PLACEHOLDER = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[sdrf]")


def shown(template: str) -> str:
    """A template as documents show it: the keys without their placeholders."""
    return _PLACEHOLDER.sub("", template).strip()


def templates() -> Iterator[tuple[str, str | None]]:
    """(place, template) of each log line; None for a template that is not constant."""
    for path in (path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*.py"))):
        place = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            method, base = node.func.attr, node.func.value
            name = getattr(base, "id", getattr(base, "attr", ""))
            if method not in METHODS or not (name in LOGS or method == "log_change"):
                continue
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if texts or place not in PASSED_ON:
                yield f"{place}:{node.lineno}", texts[0] if texts else None


def fault(template: str | None) -> str | None:
    """What is wrong with a template."""
    if template is None:
        return "the template is not constant: the rate limit and the documents need one"
    if not template[0].isupper():
        return "begin with a capital letter, as a sentence"
    keys = [key for key, _ in placeholders(template)]
    of_kafka = template.startswith("Principal = ")  # the audit log has Kafka's format, which tools read
    if not (all(keys) or template.endswith(": %s") or of_kafka):
        return "write each value as key=%s"
    return "JSON lines use this key" if RESERVED & set(keys) else None


def test_faults_are_found() -> None:
    assert shown("Topic is created: topic=%s of %d ratio=%.2f") == "Topic is created: topic= of  ratio="
    assert fault("Topic is created: topic=%s") is None
    for template in (None, "topic is created", "Topic is created %s of it", f"Created: {min(RESERVED)}=%s"):
        assert fault(template)


def test_lines_have_constant_templates_with_keys_and_no_other_line_is_explained() -> None:
    lines = list(templates())
    assert len(lines) > 100
    assert {place: wrong for place, template in lines if (wrong := fault(template))} == {}
    assert len(EXPLAINED) > 15
    assert EXPLAINED - {shown(template) for _, template in lines if template} - {shown(SUPPRESSED)} == set()


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_is_documented(name: str) -> None:
    assert f"| `{name}` | {LOGGERS[name]} |" in TEXT


def test_every_part_of_a_node_uses_a_documented_logger() -> None:
    found = [
        str(path.relative_to(PACKAGE))
        for folder in FOLDERS
        for path in (PACKAGE / folder).rglob("*.py")
        if "logging.getLogger(__name__)" in path.read_text()
    ]
    assert found == [], "use barnabas.loggers.logger with a name of its table"
