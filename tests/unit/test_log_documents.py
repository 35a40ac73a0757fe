"""Log lines have constant templates with keys; docs/operations.md names loggers and lines as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from barnabas.loggers import LOGGERS
from barnabas.runtime.log_lines import RESERVED, SUPPRESSED, placeholders
from tests.support.log_templates import FOLDERS, PACKAGE, shown, templates

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECTION = TEXT.partition("## Log lines")[2].partition("\n## ")[0]
EXPLAINED = set(re.findall(r"^\| `([^`]+)` \| (?:DEBUG|INFO|WARNING|ERROR|CRITICAL)", SECTION, re.MULTILINE))
LINES = sorted(templates(), key=str)


def test_lines_were_found() -> None:
    assert len(LINES) > 100
    assert shown("Topic is created: topic=%s of %d ratio=%.2f") == "Topic is created: topic= of  ratio="


@pytest.mark.parametrize(("place", "template"), LINES, ids=[place for place, _ in LINES])
def test_a_line_has_a_constant_template_with_keys(place: str, template: str | None) -> None:
    assert template is not None, "the template is not constant: the rate limit and the documents need one"
    assert template[0].isupper(), "begin with a capital letter, as a sentence"
    keys = [key for key, _ in placeholders(template)]
    of_kafka = template.startswith("Principal = ")  # the audit log has Kafka's format, which tools read
    assert all(keys) or template.endswith(": %s") or of_kafka, "write each value as key=%s"
    assert not RESERVED & set(keys), "JSON lines use this key"


def test_no_line_is_explained_that_does_not_exist() -> None:
    assert len(EXPLAINED) > 15
    assert EXPLAINED - {shown(template) for _, template in LINES if template} - {shown(SUPPRESSED)} == set()


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
