"""Records docs/images/first-minute.svg: runs the README's first commands on a pseudo-terminal and draws what they showed.

`python docs/images/record.py` needs the ports 9092 to 9094 and 19092 to 19094, and writes the picture beside this file. Rich
draws it; it loads nothing from elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH = 72
PICTURE = Path(__file__).with_name("first-minute.svg")
UP = "barnabas up"
COMMANDS = (
    "barnabas topic create orders --partitions 3",
    "echo tea | barnabas produce orders",
    "barnabas consume orders --from-beginning --exit-at-end",
    "barnabas cluster",
)


class Terminal:
    """One command on a terminal of its own."""

    def __init__(self, command: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
        self._process = subprocess.Popen(
            command, shell=True, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, end: str, lines: int) -> None:
        """Reads until the terminal shows `end` and this number of line ends after it."""
        while self.shown.partition(end)[2].count("\n") < lines and self._read():
            pass

    def read_all(self) -> str:
        """Reads until the command ends."""
        while self._read():
            pass
        if self._process.wait() != 0:
            raise SystemExit(f"the command failed: {self.shown}")
        return self.shown

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self._process.pid, signal.SIGINT)
        while self._read():
            pass
        self._process.wait()

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # the other side is closed
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


def main() -> None:
    """Records the session and writes the picture."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)

    def show(command: str, output: str) -> None:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(output.rstrip("\n")))

    up = Terminal(UP)
    up.read_until("Ctrl-C stops the cluster.", 3)  # and the lower rule of the banner
    shown = [(command, Terminal(command).read_all()) for command in COMMANDS]
    started = up.shown
    up.interrupt()
    show(UP, started)
    console.print(Text("\nin another terminal", "dim italic"))
    for command, output in shown:
        show(command, output)
    svg = console.export_svg(title="the first minute", theme=MONOKAI, unique_id="minute")
    PICTURE.write_text(re.sub(r"\s*@font-face \{[^}]*\}", "", svg), encoding="utf-8")


if __name__ == "__main__":
    main()
