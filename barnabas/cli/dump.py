"""`barnabas dump PATH…`: prints files of a partition, partition folders or whole data directories in readable form.

Reads the files of stopped and running brokers and of Apache Kafka: it locks, repairs and writes nothing. Records of
`__transaction_state`, `__consumer_offsets`, `__cluster_metadata` and of metadata snapshots are shown with their fields; the folder's
name selects the schema. A truncated or corrupt file is shown up to the damage, and the exit code is 1. A log of any size is read batch
by batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.dump_files import READERS, Shown, text_of
from barnabas.cli.dump_log import DumpedOffsets, log_entries
from barnabas.cli.render import Json, as_json
from barnabas.cli.session import Ended, local_command
from barnabas.cli.streams import printable
from barnabas.errors import BarnabasError, RemoteProtocolError

_LOGS: Final = (".log", ".checkpoint")
_SKIPPED: Final = (".lock",)  # it says nothing, and closing a file gives up the locks of this process on it
ALL_OFFSETS: Final = DumpedOffsets(0, None)


@local_command("dump")
def dump(
    *paths: Annotated[
        Path,
        Parameter(
            help="A .log, .index, .timeindex, .txnindex, .snapshot, checkpoint or properties file; "
            "the folder of a partition; or a data directory."
        ),
    ],
    records: Annotated[bool, Parameter(negative="--no-records", help="Show the records of each batch.")] = True,
    offsets: Annotated[
        str | None, Parameter(help="Only batches of logs with these offsets: FROM..TO, FROM.., ..TO or one offset.")
    ] = None,
    json_: Json = False,
) -> None:
    """Print files of partitions, or of whole data directories, in readable form.

    With --json each line is one batch, record, index entry or other part of a file.
    """
    if not paths:
        raise WrongCall("name a file or a folder, such as `barnabas dump data/orders-0`")
    wanted = ALL_OFFSETS if offsets is None else _range(offsets)
    failed = False
    for path in paths:
        try:
            files = _files(path, logs_only=offsets is not None)
        except OSError as error:
            print(printable(f"{path}:\n  ! {error}", "\n"))
            failed = True
            continue
        for file in _within(files, wanted):
            failed |= not _show(file, wanted, records=records, json_=json_)
    if failed:
        raise Ended(1)


def lines_of(path: Path, *, records: bool) -> Iterator[str]:
    """Yields the lines to show for one file.

    Raises:
        BarnabasError: the file is corrupt or of an unknown kind.
        OSError: the file cannot be read.
    """
    for entry in _entries(path, ALL_OFFSETS, records=records):
        yield entry.text


def _show(path: Path, wanted: DumpedOffsets, *, records: bool, json_: bool) -> bool:
    """Prints a file; returns whether it is whole."""
    if not json_:
        print(printable(f"{path}:"))
    try:
        for entry in _entries(path, wanted, records=records):
            if json_:
                print(as_json({"file": str(path), **entry.document}))
            else:
                print(printable(f"  {entry.text}"))
    except BrokenPipeError:
        raise
    except (BarnabasError, OSError) as error:
        if json_:
            print(as_json({"file": str(path), "kind": "error", "error": str(error)}))
        else:
            print(printable(f"  ! {error}"))
        return False
    return True


def _entries(path: Path, wanted: DumpedOffsets, *, records: bool) -> Iterator[Shown]:
    if not path.exists():
        raise RemoteProtocolError("there is no such file or folder")
    name = path.name.removesuffix(".deleted")
    if name.endswith(_LOGS):
        yield from log_entries(path, wanted, records=records)
        return
    read = next((read for suffix, read in READERS.items() if name.endswith(suffix)), None)
    if read is None:
        raise RemoteProtocolError(f"{path.name} is not a file of a partition or data directory")
    yield from read(text_of(path), path)


def _files(path: Path, *, logs_only: bool) -> list[Path]:
    """The file itself, or all files of a folder and its folders that can be shown, by their names."""
    if not path.is_dir():
        return [path]
    known = _LOGS if logs_only else (*_LOGS, *READERS)
    found = [
        each
        for each in sorted(path.rglob("*"))
        if each.name not in _SKIPPED and each.name.removesuffix(".deleted").endswith(known) and each.is_file()
    ]
    if not found:
        raise FileNotFoundError(f"{path} has no file of a partition or data directory")
    return found


def _within(files: Sequence[Path], wanted: DumpedOffsets) -> Iterator[Path]:
    """The files without the segments that end below the range or begin above it."""
    bases = {
        path: int(path.stem) for path in files if path.suffix == ".log" and path.stem.isascii() and path.stem.isdigit()
    }
    for place, path in enumerate(files):
        following = files[place + 1] if place + 1 < len(files) else None
        end = bases.get(following) if following is not None and following.parent == path.parent else None
        if path in bases and len(files) > 1:
            if end is not None and end <= wanted.first:
                continue
            if wanted.last is not None and bases[path] > wanted.last:
                continue
        yield path


def _range(text: str) -> DumpedOffsets:
    found = re.fullmatch(r"(\d{0,18})\.\.(\d{0,18})|(\d{1,18})", text, re.ASCII)
    if found is None or text == "..":
        raise WrongCall(f"{text!r} is no range of offsets, such as 100..200, 100.. or 100")
    if found[3]:
        return DumpedOffsets(int(found[3]), int(found[3]))
    wanted = DumpedOffsets(int(found[1] or 0), int(found[2]) if found[2] else None)
    if wanted.last is not None and wanted.last < wanted.first:
        raise WrongCall(f"{text!r} ends before it begins")
    return wanted
