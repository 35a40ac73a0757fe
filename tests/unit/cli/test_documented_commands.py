"""Every `barnabas` command that the documentation or `--help` shows is one that the command line accepts."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.app import app
from tests.support.snippets import snippets

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
_HELP = re.compile(r"`([^`]*\bbarnabas [^`]*)`")


def _commands() -> Iterator[tuple[str, str]]:
    """Where a command stands and its words after `barnabas`, comments and the rest of a pipeline cut off."""
    for page in PAGES:
        for block in [*snippets(page, ""), *snippets(page, "sh")]:
            for line in block.splitlines():
                yield from ((page.name, words) for words in _invocations(line))
    for module in sorted((ROOT / "barnabas" / "cli").glob("*.py")):
        for text in _helps(module):
            for example in _HELP.findall(text):
                yield from ((f"--help in {module.name}", words) for words in _invocations(example))


def _helps(module: Path) -> Iterator[str]:
    """The texts that `--help` adds to the options of a command."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "help_epilogue":
            yield str(ast.literal_eval(node.value)) if isinstance(node.value, ast.Constant) else ast.unparse(node.value)


def _invocations(line: str) -> Iterator[str]:
    line = re.sub(r"\s#.*", "", line)
    for part in re.split(r"&&|\||;|&\s*$|<|>", line):
        words = part.strip().partition("barnabas ")
        if not words[0] and words[1] and not words[2].endswith("…"):  # "barnabas topic …" names a group of commands
            yield words[2]


COMMANDS = sorted(set(_commands()))


def test_commands_were_found() -> None:
    assert len(COMMANDS) > 100
    assert {"README.md", "cluster.md", "pipeline.md", "--help in app.py"} <= {where for where, _ in COMMANDS}


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=[f"{where}: {words}" for where, words in COMMANDS])
def test_a_documented_command_is_accepted(where: str, words: str) -> None:
    shown = words.replace("…", "")  # an ellipsis leaves options out
    command, arguments, _ = app.parse_args(shlex.split(shown), print_error=False, exit_on_error=False)
    assert command.__module__.startswith("barnabas.cli."), (where, words)
    assert arguments is not None
