"""`--help` explains every option of every command, and shows an example."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cyclopts import App

from barnabas.cli.app import app
from tests.support.processes.cli import called


def _commands(parent: App, words: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    for name in parent:
        if name.startswith("-"):
            continue
        child = parent[name]
        if child.default_command is not None:
            yield " ".join((*words, name)), child
        yield from _commands(child, (*words, name))


COMMANDS = sorted(_commands(app), key=lambda found: found[0])


def test_commands_were_found() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_each_option_has_a_help_text(name: str, command: App) -> None:
    arguments = command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True)
    shown = [
        each for each in arguments if each.parameter.show is not False and each.name != "*"
    ]  # *: a group of options
    assert [argument.name for argument in shown if not argument.parameter.help] == []


@pytest.mark.parametrize(
    "name",
    ["", *(name for name, _ in COMMANDS if not name.endswith(" ls")), *sorted({n.split()[0] for n, _ in COMMANDS})],
)
def test_each_command_has_an_example(name: str) -> None:
    done = called(*name.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: barnabas")
    assert f"barnabas {name}".rstrip() in done.stdout.partition("Examples:")[2]
