"""What the commands print: reports whose text and JSON have one declaration, and reports that stay up to date (--watch).

JSON keys are stable: a later version may add keys and never renames or removes one. docs/cli.md lists them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, TypeVar

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.streams import printable
from barnabas.client.types import TopicPartition

T = TypeVar("T")

Json = Annotated[bool, Parameter(name="--json", help="Print JSON instead of text.")]
Watch = Annotated[bool, Parameter(name="--watch", help="Keep the output up to date until Ctrl-C.")]
Every = Annotated[float, Parameter(name="--every", help="Seconds between two updates.")]

EVERY_S_MIN = 0.1
EVERY_S_MAX = 3_600
NAMED_MAX = 10  # partitions in a sentence
NARROWEST = 12  # characters that a shortened cell keeps
RED = "31"
YELLOW = "33"
_NUMBER = re.compile(r"-|-?\d+(\.\d+)?( %| ([KMGTP]i)?B)?", re.ASCII)
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell(Generic[T]):
    """A cell of every row: a column of the text and a key of the JSON objects.

    Attributes:
        title: the heading; "" leaves the column out of the text.
        key: the JSON key; "" leaves the column out of the JSON.
        value: the value of a row; by default its item or attribute named `key`.
        text: makes the cell from the row, where it is not the value.
        shrinks: whether a terminal that is too narrow shows the middle of long cells as "…". Numbers are never shortened.
        wrong: whether a terminal shows the cell in `colour`.
    """

    title: str
    key: str = ""
    value: Callable[[T], Any] | None = None
    text: Callable[[T], object] | None = None
    shrinks: bool = False
    wrong: Callable[[T], object] | None = None
    colour: str = RED

    def of(self, row: T) -> Any:
        """The value of a row."""
        if self.value is not None:
            return self.value(row)
        return row[self.key] if isinstance(row, Mapping) else getattr(row, self.key)

    def shown(self, row: T) -> str:
        """The text of a row's value: "-" for None and an empty list."""
        value = self.of(row) if self.text is None else self.text(row)
        if isinstance(value, list | tuple):
            value = ",".join(map(str, value)) or None
        return "-" if value is None else printable(value)


class Report(Generic[T]):
    """Rows as text and as JSON."""

    def __init__(self, *columns: Cell[T]) -> None:
        self._columns = [each for each in columns if each.title]
        self._keys = [each for each in columns if each.key]

    def document(self, row: T) -> dict[str, Any]:
        """The JSON object of a row."""
        return {each.key: each.of(row) for each in self._keys}

    def documents(self, rows: Iterable[T]) -> list[dict[str, Any]]:
        """The JSON objects of rows."""
        return [self.document(row) for row in rows]

    def text(
        self, rows: Iterable[T], *, indent: str = "", width: int | None = None, colours: bool | None = None
    ) -> str:
        """Lines of aligned columns without a final line end: numbers to the right, other cells to the left.

        Args:
            width: characters of a line [default: those of the terminal; elsewhere nothing is shortened].
            colours: whether to mark what is wrong [default: on a terminal].
        """
        width = terminal_width() if width is None else width
        colours = coloured() if colours is None else colours
        rows = list(rows)
        cells = [[each.shown(row) for row in rows] for each in self._columns]
        right = [all(map(_is_number, several)) and bool(rows) for several in cells]
        widths = [max(map(len, (each.title, *several))) for each, several in zip(self._columns, cells, strict=True)]
        if width is not None:
            self._shrink(cells, widths, width - len(indent))
        lines = []
        for number in range(-1, len(rows)):
            line = ""
            for place, column in enumerate(self._columns):
                text = column.title if number < 0 else shortened(cells[place][number], widths[place])
                padding = " " * (widths[place] - len(text))
                if colours and number >= 0 and column.wrong is not None and column.wrong(rows[number]):
                    text = f"\x1b[{column.colour}m{text}\x1b[0m"
                line += f"{padding}{text}  " if right[place] else f"{text}{padding}  "
            lines.append((indent + line).rstrip())
        return "\n".join(lines)

    def _shrink(self, cells: list[list[str]], widths: list[int], width: int) -> None:
        """Takes characters from the widest columns that shrink, until a line fits."""
        floors = {
            place: max(NARROWEST, len(each.title), *(len(cell) for cell in cells[place] if _is_number(cell)), 0)
            for place, each in enumerate(self._columns)
            if each.shrinks
        }
        for _ in range(sum(widths) + 2 * (len(widths) - 1) - width):
            above = [place for place, floor in floors.items() if widths[place] > floor]
            if not above:
                return
            widths[max(above, key=widths.__getitem__)] -= 1

    def show(self, rows: list[T], json_: bool, empty: str = "", text: Callable[[list[T]], str] | None = None) -> None:
        """Prints rows.

        Args:
            text: the text of the rows, where it is not that of the report; "" prints nothing.
            empty: goes to stderr, in place of the text, if there are no rows.
        """
        if empty and not rows:
            print(empty, file=sys.stderr)
        if json_:
            print_json(self.documents(rows))
        elif (rows or not empty) and (lines := (text or self.text)(rows)):
            print(lines)


def place_columns(of: Callable[[T], TopicPartition]) -> tuple[Cell[T], Cell[T], Cell[T]]:
    """The columns of a partition: its name in the text, topic and partition in the JSON."""
    return (
        Cell("partition", text=lambda row: named(of(row)), shrinks=True),
        Cell("", "topic", lambda row: of(row).topic),
        Cell("", "partition", lambda row: of(row).partition),
    )


def place(tp: TopicPartition) -> dict[str, Any]:
    """A partition in JSON."""
    return {"topic": tp.topic, "partition": tp.partition}


def known(name: str) -> Callable[[Any], Any]:
    """Reads an attribute; None for -1, which stands for what is not known."""

    def read(row: Any) -> Any:
        value = getattr(row, name)
        return None if value < 0 else value

    return read


def shortened(text: str, width: int) -> str:
    """A text without its middle, if it is longer than `width`."""
    if len(text) <= width or _is_number(text):
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def terminal_width() -> int | None:
    """Characters of a line of the terminal; None if the output is no terminal."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size  # here, because its import takes milliseconds

    return get_terminal_size().columns


def coloured() -> bool:
    """Whether the output is a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def marked(text: str, colour: str = RED) -> str:
    """A text in a colour, on terminals; "" is none."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and coloured() else text


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


# -- JSON and reports that stay up to date -----------------------------------------------------------------------------


def as_json(document: Any, indent: int | None = None) -> str:
    """A JSON document, on one line unless `indent` is given; safe for a terminal."""
    separators = (",", ":") if indent is None else None
    return printable(json.dumps(document, ensure_ascii=False, indent=indent, separators=separators), "\n")


def print_json(document: Any) -> None:
    """Prints one JSON document, indented."""
    print(as_json(document, 2))


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """The options of a report that can stay up to date."""

    json_: Json = False
    watch: Watch = False
    every: Every = 1.0

    async def show(
        self,
        read: Callable[[], Awaitable[list[T]]],
        report: Report[T],
        text: Callable[[list[T]], str] | None = None,
        *,
        empty: str = "",
    ) -> None:
        """Prints the rows that `read` returns, as `Report.show`. With --watch until it is cancelled; JSON is then on one line."""
        if not self.watch:
            report.show(await read(), self.json_, empty, text)
            return

        async def rendered() -> str:
            rows = await read()
            return as_json(report.documents(rows)) if self.json_ else (text or report.text)(rows)

        await watched(self.every, rendered, in_place=not self.json_)


DEFAULT_OUTPUT: Final = Output()


def check_every(every: float) -> None:
    """Raises WrongCall if `every` is not a time to wait in seconds."""
    if not 0 < every <= EVERY_S_MAX:  # also "not a number"
        raise WrongCall(f"--every {every:g}: it must be above 0 and at most {EVERY_S_MAX} seconds")


async def watched(every: float, read: Callable[[], Awaitable[str]], *, in_place: bool = True) -> None:
    """Shows what `read` returns, again every `every` seconds until it is cancelled.

    On a terminal the text replaces the one before. Elsewhere each text that differs from the one before is printed. Raises WrongCall:
    `every` is not a time to wait.
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
        return Text.from_ansi(text, no_wrap=True, overflow="ellipsis")

    with Live(cut(await read()), refresh_per_second=8) as live:
        while True:
            await asyncio.sleep(every)
            live.update(cut(await read()), refresh=True)


# -- values ------------------------------------------------------------------------------------------------------------


def named(partition: TopicPartition) -> str:
    """The name of a partition as Kafka's tools print it."""
    return f"{partition.topic}-{partition.partition}"


def named_some(partitions: Sequence[TopicPartition]) -> str:
    """The names of the first partitions, for a sentence."""
    names = ", ".join(map(named, partitions[:NAMED_MAX]))
    return f"{names}, …" if len(partitions) > NAMED_MAX else names


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


def as_size(size_bytes: int | None) -> str | None:
    """A size in bytes with a binary unit, such as 1.5 MiB; None stays None."""
    if size_bytes is None:
        return None
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{value:.1f} {_SIZES[unit]}"
