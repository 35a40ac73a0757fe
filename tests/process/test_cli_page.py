"""The transcripts of docs/cli.md: every command runs, and prints what the page shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from barnabas.testing import Cluster
from tests.support.console import Step, differences, fits, run_step, steps

pytestmark = pytest.mark.process
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_shows_what_the_commands_print(tmp_path: Path) -> None:
    """All commands of the page run from top to bottom on one cluster of three brokers."""
    with Cluster(brokers=3) as kafka:
        environment = {
            "BARNABAS_BOOTSTRAP": kafka.bootstrap_servers,
            "XDG_CONFIG_HOME": str(tmp_path),
            "COLUMNS": "100",
            "PAGE_DATA": str(tmp_path),
        }
        before = Path.cwd()
        os.chdir(tmp_path)
        try:
            found = differences(PAGE, lambda step: run_step(step, environment))
        finally:
            os.chdir(before)
    assert not found, "docs/cli.md differs from what its commands print:\n" + "\n".join(found)


def test_the_page_has_its_hundred_lines() -> None:
    found = steps(PAGE)
    assert sum(1 + len(step.output) for step in found) >= 100
    assert len(found) > 40


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        (("a  b",), ("a      b",)),
        (("id …", "x"), ("id 7", "x")),
        (("…", "x"), ("1", "2", "x")),
        (("…", "x"), ("x",)),
    ],
)
def test_lines_that_fit(expected: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert fits(expected, shown)


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        (("a b",), ("a c",)),
        (("a",), ()),
        ((), ("a",)),
        (("id …",), ("id ",)),
        (("…", "x"), ("1", "2")),
        (("a",), ("a", "b")),
    ],
)
def test_lines_that_differ(expected: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert not fits(expected, shown)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("$ barnabas --version\nmine\n", ["$ barnabas --version", "- mine"]),
        ("$ echo one\none\n$ echo two | cat\none\n", ["$ echo two | cat", "- one", "+ two"]),
        ("$ exit 3\n", ["$ exit 3", "+ $? 3"]),
        ("$ exit 3\n$? 3\n", []),
    ],
)
def test_a_line_that_differs_is_found(tmp_path: Path, block: str, found: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"text\n\n```console\n{block}```\n")
    assert differences(page, lambda step: run_step(step, {}))[: len(found) or 1] == found


def test_steps_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ a\n1\n2\n$? 4\n```\n\n```console\n$ b\n```\n")
    assert steps(page) == [Step("a", ("1", "2"), 4), Step("b", ())]
