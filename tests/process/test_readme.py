"""The README as a newcomer follows it: its commands in order, then its programs, on one cluster.

Each command and each program runs as it is printed; only the cluster's addresses are put in the place of the default ones.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.processes.cli import as_in_a_terminal, shown_until
from tests.support.processes.up import COMMAND, SECONDS_MAX, Up
from tests.support.snippets import snippets

pytestmark = pytest.mark.process

README = Path(__file__).parents[2] / "README.md"
START, COMMANDS, WATCH, MAKE = snippets(README, "")
# The last one is run by tests/pipeline/test_snippets.py, the first one by tests/testing_kit/test_documents.py.
TESTS, PROGRAM, EXACTLY_ONCE, SPARK = snippets(README, "python")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The cluster that `barnabas up` starts, on free ports."""
    running = Up(tmp_path_factory.mktemp("readme") / "cluster", "--port", "0")
    yield running
    try:
        assert running.end() == 0
    finally:
        running.kill()


def _run(line: str, up: Up) -> str:
    """What one printed command, or a pipeline of them, writes to standard output."""
    line = line.replace("barnabas ", shlex.join(COMMAND) + " ") + f" -b {up.bootstrap}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


@contextmanager
def _on_a_terminal(*command: str) -> Iterator[int]:
    """A command that runs until Ctrl-C, and the terminal that it writes to."""
    ours, theirs = os.openpty()
    running = subprocess.Popen(command, stdout=theirs, stderr=theirs, preexec_fn=as_in_a_terminal)
    os.close(theirs)
    try:
        yield ours
        running.send_signal(signal.SIGINT)
        shown = b""
        with suppress(OSError):  # EIO: it has ended
            while True:
                shown += os.read(ours, 65_536)
        assert b"Traceback" not in shown
        running.wait(SECONDS_MAX)
    finally:
        running.kill()
        running.wait()
        os.close(ours)


def test_every_example_is_run() -> None:
    assert re.findall(r"^make \S+", MAKE, re.MULTILINE) == ["make demo", "make test"]
    assert "def test_" in TESTS
    assert "asyncio.run(main())" in PROGRAM
    assert "exactly_once(" in EXACTLY_ONCE
    assert "writeStream" in SPARK
    assert "After `pip install '.[security]'`, `barnabas up --tls" in README.read_text(), "TLS needs the extra"


def test_commands_and_programs(up: Up, tmp_path: Path) -> None:
    lines = [re.sub(r"\s+#.*", "", line) for line in COMMANDS.splitlines() if line.strip()]
    install, start = [re.sub(r"\s+#.*", "", line) for line in START.splitlines()]
    assert (install, start) == ("pip install .", "barnabas up")  # the fixture `up` ran the second
    written = [_run(command, up) for command in lines]
    watch, transactions = [re.sub(r"\s+#.*", "", line) for line in WATCH.splitlines()]
    assert "hello" in written[-2].splitlines()

    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace('"localhost:9092"', f'"{up.bootstrap}"'))
    with _on_a_terminal(sys.executable, str(program)) as terminal:
        shown = ""
        while not ("None b'hello'" in shown and "b'42' b'tea'" in shown):  # two partitions: in either order
            shown += shown_until(terminal, r"\n")
        with _on_a_terminal(*COMMAND, *shlex.split(watch)[1:], "-b", up.bootstrap) as table:
            shown_until(table, r"(?s)kitchen.*orders")
    assert "orders-1" in _run(transactions, up)

    program.write_text(EXACTLY_ONCE.replace('"localhost:9092"', f'"{up.bootstrap}"'))
    _run("barnabas topic create shouted", up)
    with _on_a_terminal(sys.executable, str(program)):
        copied: list[str] = []
        while len(copied) < 2:
            copied = _run("barnabas consume shouted --from-beginning --exit-at-end", up).split()
    assert sorted(copied) == ["HELLO", "TEA"]


def test_the_picture_shows_the_commands_and_loads_nothing() -> None:
    """docs/images/record.py draws it."""
    text = (README.parent / "docs" / "images" / "first-minute.svg").read_text()
    shown = "".join(ElementTree.fromstring(text).itertext()).replace("\N{NO-BREAK SPACE}", " ")
    for command in (
        "barnabas up",
        *COMMANDS.splitlines()[:1],
        "barnabas consume orders --from-beginning --exit-at-end",
    ):
        assert f"$ {command}" in shown
    assert "@font-face" not in text
    assert "url(http" not in text
