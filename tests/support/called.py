"""The command `barnabas` called inside the test's process: what it prints and its exit code."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

from barnabas.cli.main import app

__all__ = ["Shown", "called"]


class Shown(NamedTuple):
    """What a command has left: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What `--json` printed."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line, the head of a table included."""
        assert self.code == 0, self.err
        return [line.split() for line in self.out.splitlines()]


def called(*arguments: str) -> Shown:
    """Runs `barnabas` with these arguments. No event loop may be running."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = app(list(arguments))
        except SystemExit as ended:
            code = ended.code
    return Shown(int(code or 0), out.getvalue(), err.getvalue())
