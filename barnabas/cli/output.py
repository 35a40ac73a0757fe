"""What the commands print: tables, JSON, and tables that stay up to date (--watch).

JSON keys are stable: a later version may add keys and never renames or removes one. docs/cli.md lists them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

__all__ = ["Every", "Json", "Watch", "print_json", "print_json_line", "table", "watched"]

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of text.")]
Watch = Annotated[bool, Parameter(name="--watch", negative=(), help="Keep the output up to date until Ctrl-C.")]
Every = Annotated[float, Parameter(name="--every", help="Seconds between two updates with --watch.")]

EVERY_S_MIN = 0.1


def print_json(document: Any) -> None:
    """Prints one JSON document, indented."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def print_json_line(document: Any) -> None:
    """Prints one JSON document on one line."""
    print(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


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


async def watched(every: float, read: Callable[[], Awaitable[str]]) -> None:
    """Shows what `read` returns, again every `every` seconds until it is cancelled.

    On a terminal the text replaces the one before. Elsewhere each text that differs from the one before is printed.
    """
    every = max(every, EVERY_S_MIN)
    if not sys.stdout.isatty():
        before = None
        while True:
            text = await read()
            if text != before:
                print(text, flush=True)
            before = text
            await asyncio.sleep(every)
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), refresh_per_second=8) as live:
        while True:
            live.update(Text(await read()), refresh=True)
            await asyncio.sleep(every)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.lstrip("-").isdecimal()
