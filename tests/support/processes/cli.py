"""The command `barnabas`: as a process, or called in this one where a process is not the point."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, AnyStr, NamedTuple
from unittest import mock

from barnabas.cli.main import exit_code
from tests.support.security.planted import without_secrets


class Called(NamedTuple):
    """What a call printed: each stream, and both in the order of writing."""

    returncode: int
    stdout: str
    stderr: str
    shown: str

    @property
    def document(self) -> Any:
        """What `--json` printed."""
        assert self.returncode == 0, self.stderr
        return json.loads(self.stdout)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line, the head of a table included."""
        assert self.returncode == 0, self.stderr
        return [line.split() for line in self.stdout.splitlines()]


class _Stream(io.BytesIO):
    def __init__(self, both: io.BytesIO) -> None:
        super().__init__()
        self.both = both

    def write(self, data: object) -> int:
        self.both.write(data)  # type: ignore[arg-type]  # bytes, from the text layer above
        return super().write(data)  # type: ignore[arg-type]  # as above


def called(*arguments: str, stdin: str | bytes = "", environment: Mapping[str, str] | None = None) -> Called:
    """Calls the command in this process, on the main thread: 0.5 s faster than a process.

    What it prints is decoded with "surrogateescape", so that bytes can be had from it.
    """
    both = io.BytesIO()
    streams = _Stream(both), _Stream(both)
    texts = [io.TextIOWrapper(each, "utf-8", write_through=True) for each in streams]
    loggers = [logging.getLogger(name) for name in ("barnabas.client", "barnabas.client.net")]
    levels = [each.level for each in loggers]
    with (
        tempfile.TemporaryFile() as file,
        mock.patch.multiple(sys, argv=["barnabas", *arguments], stdout=texts[0], stderr=texts[1]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(file, "utf-8")),
        mock.patch.dict(os.environ, environment or {}),
    ):
        file.write(stdin.encode() if isinstance(stdin, str) else stdin)
        file.seek(0)
        code = exit_code()
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)
    printed = [each.getvalue().decode(errors="surrogateescape") for each in (*streams, both)]
    without_secrets(printed[2], f"the output of {' '.join(arguments[:2])}")
    return Called(code, printed[0], printed[1], printed[2])


def barnabas(*arguments: str, stdin: str = "", timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "barnabas.cli.main", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)
    without_secrets(done.stdout + done.stderr, f"the output of {' '.join(arguments[:2])}")
    return done


class ForeignModules:
    """A working directory with files of the names of modules. Each file that is imported leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in (*sys.stdlib_module_names, "barnabas", "crc32c", "cramjam", "h11", "rich", "uvloop"):
            (folder / f"{name}.py").write_text("open(__file__ + '.imported', 'w').close()\n")

    def imported(self) -> list[str]:
        return sorted(path.name.removesuffix(".imported") for path in self.folder.glob("*.imported"))


def as_in_a_terminal() -> None:
    """Ctrl-C ends it. What runs in a shell's background has it ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def line_of(process: subprocess.Popen[AnyStr], timeout_s: float = 120) -> AnyStr:
    """The next line that a process prints; a process that prints none in time is killed, and its line is empty."""
    assert process.stdout is not None
    limit = threading.Timer(timeout_s, process.kill)
    limit.start()
    try:
        return process.stdout.readline()
    finally:
        limit.cancel()


def shown_until(terminal: int, pattern: str, timeout_s: float = 60) -> str:
    """What appears on a terminal until a pattern does."""
    shown = ""
    deadline = time.monotonic() + timeout_s
    while re.search(pattern, shown) is None:
        assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], shown
        shown += os.read(terminal, 65_536).decode()
    return shown


def rest_of(terminal: int) -> str:
    """What a process that has ended left on its terminal."""
    shown = b""
    with suppress(OSError):  # Linux: EIO at the end
        while data := os.read(terminal, 65_536):
            shown += data
    return shown.decode()
