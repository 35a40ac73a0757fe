"""Standard streams. Exit codes: 141 if the output's reader has ended, like SIGPIPE; 1 with a line on stderr for other write errors."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from contextlib import suppress
from typing import Any, Final

READER_GONE: Final = 141  # 128 + SIGPIPE
# Control characters of ASCII, C1 and Unicode (line separators, bidirectional text), and halves of surrogate pairs.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object, kept: str = "") -> str:
    r"""A text that a terminal shows and does not obey: control characters, except those in `kept`, as \uXXXX, which JSON reads, too."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in kept else f"\\u{ord(found[0]):04x}", str(text))


class OutputUnwritable(OSError):
    """A write to standard output has failed."""


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputUnwritable(error.errno, error.strerror) from None


class _Messages(io.FileIO):
    """Standard error. A message that cannot be written is dropped: the work was done, and its exit code says how."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(memoryview(data).cast("B"))


def repair_streams() -> None:
    """Prepares the standard streams of a process: closed ones, and how a failed write to the output is reported.

    Closed descriptors are opened, so that no later file or socket takes their numbers. A closed standard input cannot be read and a closed
    standard output cannot be written: each is opened for the other direction, so its use fails as it would have failed. A closed or full
    standard error swallows what is written to it.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    errors = "utf-8" if sys.stderr is None else sys.stderr.encoding
    messages = io.BufferedWriter(_Messages(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(messages, errors, errors="backslashreplace", line_buffering=True)
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    output = _Output(1, "w", closefd=False)
    buffered = io.BufferedWriter(output)
    sys.stdout = io.TextIOWrapper(buffered, encoding, errors="replace", line_buffering=output.isatty())


def written_out(code: int) -> int:
    """Writes what is left of the output. Returns the exit code: `code`, or that of an output that cannot be written."""
    try:
        sys.stdout.flush()
    except OutputUnwritable as error:
        code = given_up(error)
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    return code


def given_up(error: OutputUnwritable) -> int:
    """Gives up the output after an error; says why on stderr. Returns the exit code."""
    drop_output()
    if error.errno == errno.EPIPE:
        return READER_GONE
    with suppress(OSError, ValueError):
        print(f"barnabas: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
    return 1


def drop_output() -> None:
    """Drops what is left in the buffer of the output, and what is written from now on."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
