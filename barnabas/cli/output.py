"""What the commands print: tables, JSON, and tables that stay up to date (--watch).

JSON keys are stable: a later version may add keys and never renames or removes one. docs/cli.md lists them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall

__all__ = [
    "EVERY_S_MIN",
    "Every",
    "Json",
    "Watch",
    "as_line",
    "check_every",
    "duration",
    "moment",
    "print_json",
    "print_json_line",
    "printed_uuid",
    "shown",
    "table",
    "watched",
]

T = TypeVar("T")

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of text.")]
Watch = Annotated[bool, Parameter(name="--watch", negative=(), help="Keep the output up to date until Ctrl-C.")]
Every = Annotated[float, Parameter(name="--every", help="Seconds between two updates.")]

EVERY_S_MIN = 0.1
EVERY_S_MAX = 3_600


def print_json(document: Any) -> None:
    """Prints one JSON document, indented."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def print_json_line(document: Any) -> None:
    """Prints one JSON document on one line."""
    print(as_line(document))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns lines of aligned columns without a final line end: numbers to the right, other cells to the left.

    None becomes "-". Without rows only the header is returned.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[column]) for row in cells) and bool(cells) for column in range(len(header))]
    widths = [max(len(row[column]) for row in (list(header), *cells)) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in (list(header), *cells)
    )


async def shown(
    read: Callable[[], Awaitable[T]],
    *,
    document: Callable[[T], Any],
    text: Callable[[T], str],
    json_: bool,
    watch: bool = False,
    every: float = 1.0,
    empty: str = "",
) -> None:
    """Prints what `read` returns, as JSON or text. With `watch` it goes on until it is cancelled; JSON is then on one line.

    `empty` goes to stderr, in place of the text, if `read` returns nothing.
    """
    if not watch:
        found = await read()
        if empty and not found:
            print(empty, file=sys.stderr)
        if json_:
            print_json(document(found))
        elif (found or not empty) and (line := text(found)):
            print(line)
    elif json_:
        await watched(every, lambda: _rendered(read, as_line, document), in_place=False)
    else:
        await watched(every, lambda: _rendered(read, str, text))


async def _rendered(read: Callable[[], Awaitable[T]], end: Callable[[Any], str], form: Callable[[T], Any]) -> str:
    return end(form(await read()))


def check_every(every: float) -> None:
    """Raises WrongCall if `every` is not a time to wait in seconds."""
    if not 0 < every <= EVERY_S_MAX:  # also "not a number"
        raise WrongCall(f"--every {every:g}: it must be above 0 and at most {EVERY_S_MAX} seconds")


async def watched(every: float, read: Callable[[], Awaitable[str]], *, in_place: bool = True) -> None:
    """Shows what `read` returns, again every `every` seconds until it is cancelled.

    On a terminal the text replaces the one before. Elsewhere each text that differs from the one before is printed.

    Raises:
        WrongCall: `every` is not a time to wait.
    """
    check_every(every)
    every = max(every, EVERY_S_MIN)
    if not in_place or not sys.stdout.isatty():
        before = None
        while True:
            text = await read()
            if text != before:
                print(text, flush=True)
            before = text
            await asyncio.sleep(every)
    from rich.live import Live
    from rich.text import Text

    def cut(text: str) -> Text:
        return Text(text, no_wrap=True, overflow="ellipsis")

    with Live(cut(await read()), refresh_per_second=8) as live:
        while True:
            await asyncio.sleep(every)
            live.update(cut(await read()), refresh=True)


def printed_uuid(data: bytes) -> str:
    """A UUID as org.apache.kafka.common.Uuid prints it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def moment(time_ms: int) -> str:
    """A time in ms since the Unix epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def duration(ms: float) -> str:
    """A duration with its two largest units: "850 ms", "12 s", "3 min 5 s", "2 h 10 min", "4 d 1 h"."""
    if ms < 1000:
        return f"{max(ms, 0):.0f} ms"
    seconds = int(ms / 1000)
    for large, small, size, part in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {large}{f' {rest} {small}' if rest else ''}"
    return f"{seconds} s"


def as_line(document: Any) -> str:
    """One JSON document on one line."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.lstrip("-").isdecimal()
