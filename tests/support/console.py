"""Console transcripts in Markdown pages: commands after `$ `, and what they print. A test runs them and compares.

A block of the language `console` holds commands and their output, as a terminal shows both streams:

    $ barnabas topic create orders --partitions 3
    created orders with 3 partitions, replication factor 3

In an expected line `…` stands for any text, at least one character. A line that is only `…` stands for any number of lines. A
run of spaces fits any other run of spaces, because the widths of columns vary with their content. `$? 1` after the output of a
command is its exit code; without it the code is 0.
A command that is `barnabas` alone runs in this process, which is faster. Others run in bash.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.processes.cli import called
from tests.support.snippets import snippets

_SHELL = re.compile(r"[|<>&;$*`]")
TIMEOUT_S = 60.0


class Step(NamedTuple):
    """A command, the lines that it prints, and its exit code."""

    command: str
    output: tuple[str, ...]
    code: int = 0


def steps(page: Path) -> list[Step]:
    """The commands of all console blocks of a page, in order."""
    found: list[Step] = []
    for block in snippets(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:], ()))
            elif line.startswith("$? "):
                found[-1] = found[-1]._replace(code=int(line[3:]))
            else:
                found[-1] = found[-1]._replace(output=(*found[-1].output, line))
    return found


def run_step(step: Step, environment: Mapping[str, str]) -> Step:
    """Runs a command; returns it with what it printed and its exit code."""
    if step.command.startswith("barnabas ") and not _SHELL.search(step.command):
        done = called(*shlex.split(step.command, comments=True)[1:], environment=environment)
        return Step(step.command, tuple(done.shown.splitlines()), done.returncode)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {step.command}"],
        env={**os.environ, **environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Step(step.command, tuple(ran.stdout.splitlines()), ran.returncode)


def fits(expected: tuple[str, ...], shown: tuple[str, ...]) -> bool:
    """Whether the lines shown are the expected ones."""
    if not expected:
        return not shown
    if expected[0] == "…":
        return any(fits(expected[1:], shown[at:]) for at in range(len(shown) + 1))
    return bool(shown) and _fits_line(expected[0], shown[0]) and fits(expected[1:], shown[1:])


def differences(page: Path, run: Callable[[Step], Step]) -> list[str]:
    """Runs a page from its first command to its last; returns what differs, as lines of a diff under each command."""
    found: list[str] = []
    for step in steps(page):
        ran = run(step)
        if not fits(step.output, ran.output) or step.code != ran.code:
            found.append(f"$ {step.command}")
            found += [line for line in difflib.ndiff(_lines(step), _lines(ran)) if line[0] != "?"]
    return found


def _lines(step: Step) -> list[str]:
    return [*step.output, *([f"$? {step.code}"] if step.code else [])]


def _fits_line(expected: str, shown: str) -> bool:
    parts = re.split(r"(…| +)", expected.rstrip())
    pattern = "".join(".+" if part == "…" else " +" if part.startswith(" ") else re.escape(part) for part in parts)
    return re.fullmatch(pattern, shown.rstrip()) is not None
