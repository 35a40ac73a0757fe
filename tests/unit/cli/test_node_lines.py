"""Lines of the nodes' logs that `barnabas up` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.cli.up import READ_BYTES_MAX, NodeLines

TEXT = "2026-11-22 20:49:55,123 {level} kafka.server: {message}\n"
JSON = (
    '{{"time":"2026-11-22T20:49:55.123Z","level":"{level}","logger":"kafka.server","node":1,"message":"{message}"}}\n'
)


class Shown:
    """What a NodeLines of one file has shown."""

    def __init__(self, file: Path, level: str = "WARNING") -> None:
        self.file = file
        self.lines: list[str] = []
        self.follower = NodeLines(level, lambda name, line: self.lines.append(f"{name}: {line}"))
        self.follower.follow("node 1", file)

    def write(self, text: str) -> list[str]:
        with self.file.open("a") as file:
            file.write(text)
        self.follower.read()
        shown, self.lines = self.lines, []
        return shown


@pytest.mark.parametrize("form", [TEXT, JSON])
def test_warnings_are_shown_with_their_node(tmp_path: Path, form: str) -> None:
    shown = Shown(tmp_path / "log")
    info = form.format(level="INFO", message="quiet")
    warning = form.format(level="WARNING", message="loud")
    assert shown.write(info + warning) == [f"node 1: {warning.rstrip()}"]
    assert shown.write(warning[:10]) == []
    assert shown.write(warning[10:]) == [f"node 1: {warning.rstrip()}"]
    assert shown.write(form.format(level="WARNING", message="Setting: unknown setting 'x' ignored")) == []
    shown.follower.show_errors_only()
    assert shown.write(warning) == []
    assert len(shown.write(form.format(level="CRITICAL", message="the end"))) == 1


def test_a_lower_level_shows_more(tmp_path: Path) -> None:
    assert len(Shown(tmp_path / "log", "INFO").write(TEXT.format(level="INFO", message="quiet"))) == 1


def test_a_traceback_belongs_to_its_line(tmp_path: Path) -> None:
    shown = Shown(tmp_path / "log")
    error = TEXT.format(level="ERROR", message="failed") + "    Traceback\n    ValueError\n"
    assert len(shown.write(error)) == 3
    assert shown.write(TEXT.format(level="INFO", message="quiet") + "    of a quiet line\n") == []
    assert shown.write("barnabas serve: cannot start\n") == ["node 1: barnabas serve: cannot start"]


def test_only_what_is_new_and_nothing_that_moves_the_cursor(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(TEXT.format(level="ERROR", message="of an earlier start"))
    shown = Shown(file)
    assert shown.write("") == []
    assert shown.write(TEXT.format(level="ERROR", message="\x1b[2J")) == [
        "node 1: 2026-11-22 20:49:55,123 ERROR kafka.server: ?[2J"
    ]


def test_a_missing_file_and_a_line_without_end(tmp_path: Path) -> None:
    shown = Shown(tmp_path / "missing")
    shown.follower.read()
    assert shown.lines == []
    assert len(shown.write("x" * (READ_BYTES_MAX + 10))) == 1
