"""Shows lines of the nodes' logs while they run: warnings and worse, each with the name of its node.

It reads what was appended to the log files since, so a node never waits for a reader.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

EVERY_S: Final = 0.25
READ_BYTES_MAX: Final = 256 * 1024  # of one file in one turn
LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_JSON = re.compile(r'\{"time":"[^"]*","level":"([A-Z]+)"')
_SETTING = re.compile(r' kafka\.server: Setting: |"message":"Setting: ')  # `up` itself names ignored settings once


class NodeLines:
    """Follows log files.

    Args:
        level: the least severe level that is shown, one of LEVELS. Lines that are no log lines are shown, too.
        show: called with a node's name and a line.
    """

    def __init__(self, level: str, show: Callable[[str, str], None]) -> None:
        self._shown = LEVELS[LEVELS.index(level) :]
        self._show = show
        self._files: dict[Path, tuple[str, int]] = {}  # node's name, bytes read
        self._continues: dict[Path, bool] = {}  # whether a traceback that follows is shown

    def show_errors_only(self) -> None:
        """Shows no warnings any more: the nodes stop."""
        self.read()
        self._shown = LEVELS[LEVELS.index("ERROR") :]

    def follow(self, name: str, file: Path) -> None:
        """Shows what is appended to the file from now on. Does nothing if the file is followed already."""
        if file not in self._files:
            self._files[file] = name, file.stat().st_size if file.exists() else 0

    async def run(self) -> None:
        """Shows new lines until it is cancelled."""
        while True:
            self.read()
            await asyncio.sleep(EVERY_S)

    def read(self) -> None:
        """Shows the complete lines that are new."""
        for file, (name, position) in list(self._files.items()):
            try:
                if file.stat().st_size <= position:
                    continue
                with file.open("rb") as opened:
                    opened.seek(position)
                    data = opened.read(READ_BYTES_MAX)
            except OSError:
                continue
            complete = data.rfind(b"\n") + 1
            if not complete and len(data) == READ_BYTES_MAX:
                complete = len(data)  # a line without end
            self._files[file] = name, position + complete
            for line in data[:complete].decode(errors="replace").splitlines():
                if self._is_shown(file, line):
                    self._show(name, "".join(each if each.isprintable() else "?" for each in line))

    def _is_shown(self, file: Path, line: str) -> bool:
        found = _TEXT.match(line) or _JSON.match(line)
        if found is None:
            return self._continues.get(file, True) if line.startswith("    ") else bool(line.strip())
        self._continues[file] = found[1] in self._shown
        return self._continues[file] and _SETTING.search(line) is None
