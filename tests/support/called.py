"""The command `barnabas` called inside the test's process: its exit code, what it prints, and that as a document or as rows."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.support.processes import cli


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
    """Calls `barnabas` with these arguments, as `tests.support.processes.cli.called` does."""
    done = cli.called(*arguments)
    return Shown(done.returncode, done.stdout, done.stderr)
