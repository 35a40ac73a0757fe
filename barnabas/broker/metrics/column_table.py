"""ColumnTable: cached text of samples with one row for each partition, read column by column."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from barnabas.broker.metrics.line_table import PAGE_ROWS, PAGES_PER_UNIT, LineTable, Series, header
from barnabas.work import Work

ADDED_PER_SLICE: Final = 500  # rows
UNITS_PER_MADE_PAGE: Final = 2  # the text of one series that is made again

K = TypeVar("K", bound=Hashable)
Column = list[int]
_NAME: Final = "\0"  # stands in a template for the name of the series


class Page(Generic[K]):
    """PAGE_ROWS rows: one list comprehension reads a column, one comparison detects a change, one formatting makes its text."""

    __slots__ = ("_columns", "_labels", "_stale", "_template", "_texts", "keys", "known")

    def __init__(self, series: int) -> None:
        self.keys: list[K] = []  # of its rows, in their order
        # the owner's notes of the rows, to detect changes; None after a row was added or dropped
        self.known: object = None
        self._labels: list[str] = []
        self._columns: list[Column] = [[] for _ in range(series)]
        self._texts: list[bytes] = [b""] * series
        self._stale: set[int] = set()
        self._template = ""

    def add(self, key: K, labels: str) -> None:
        self.keys.append(key)
        self._labels.append(labels)
        self._forget()

    def drop(self, key: K) -> None:
        at = self.keys.index(key)
        del self.keys[at], self._labels[at]
        self._forget()

    def _forget(self) -> None:
        self.known = None
        self._template = ""
        if self._columns[0]:
            self._columns = [[] for _ in self._columns]

    def put(self, number: int, column: Column) -> bool:
        """Sets the values of one series, one for each key. Returns whether they have changed."""
        if column == self._columns[number]:
            return False
        self._columns[number] = column
        self._stale.add(number)
        return True

    def text(self, number: int, name: str) -> tuple[bytes, bool]:
        """The lines of one series, and whether they were made anew."""
        if number not in self._stale:
            return self._texts[number], False
        self._stale.discard(number)
        if not self._template:
            self._template = "".join([f"{_NAME}{labels.replace('%', '%%')} %d\n" for labels in self._labels])
        text = self._texts[number] = (self._template.replace(_NAME, name) % tuple(self._columns[number])).encode()
        return text, True


class ColumnTable(Generic[K]):
    """Series of a busy node: some numbers of each of its 10,000 partitions change between two scrapes.

    `labels` returns those of a row's key, as from `labels_text`; called once for each row. `others` has rows with other keys or missing
    values.
    """

    def __init__(
        self, series: Sequence[Series], labels: Callable[[K], str], others: LineTable[tuple[str, int]] | None = None
    ) -> None:
        self._series = tuple(series)
        self._labels = labels
        self._others = others
        self._page_of: dict[K, Page[K]] = {}
        self._followed: list[K] | None = None
        self._pages: dict[Page[K], None] = {}
        self._room: dict[Page[K], None] = {}  # pages with fewer than PAGE_ROWS rows

    def __len__(self) -> int:
        return len(self._page_of)

    @property
    def pages(self) -> list[Page[K]]:
        """All pages; each has rows."""
        return list(self._pages)

    def follow(self, keys: list[K]) -> Iterator[None]:
        """Adds and drops rows to match `keys`. The owner then gives each page its columns."""
        if keys == self._followed:  # the same objects in the same order: fast
            return
        self._followed = None  # if the caller leaves this iterator early, the next call does the rest
        wanted = dict.fromkeys(keys)
        for key in [each for each in self._page_of if each not in wanted]:
            page = self._page_of.pop(key)
            page.drop(key)
            if page.keys:
                self._room[page] = None
            else:
                del self._pages[page]
                self._room.pop(page, None)
        for count, key in enumerate([each for each in keys if each not in self._page_of], 1):
            self._add(key)
            if count % ADDED_PER_SLICE == 0:
                yield None
        self._followed = keys

    def _add(self, key: K) -> None:
        page = next(iter(self._room), None)
        if page is None:
            page = Page(len(self._series))
            self._pages[page] = self._room[page] = None
        page.add(key, self._labels(key))
        self._page_of[key] = page
        if len(page.keys) >= PAGE_ROWS:
            del self._room[page]

    def written(self, out: list[bytes], *, openmetrics: bool) -> Work:
        """Appends the text of all series to `out`, in slices."""
        others = self._others
        for number, series in enumerate(self._series):
            if not self._pages and not others:
                return
            out.append(header(series, openmetrics=openmetrics))
            units = 0.0
            for page in self.pages:
                text, made = page.text(number, series.name)
                out.append(text)
                units += UNITS_PER_MADE_PAGE if made else 1 / PAGES_PER_UNIT
                if units >= 1:
                    yield int(units)
                    units = 0.0
            yield 1
            if others is not None:
                yield from others.lines(number, out)
