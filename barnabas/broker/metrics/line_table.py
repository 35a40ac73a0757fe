"""LineTable: cached text of samples with one row for each partition, topic or group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from barnabas.work import Work

PAGE_ROWS: Final = 128
ROWS_PER_UNIT: Final = 24  # of a page that is made again
PAGES_PER_UNIT: Final = 16  # of unchanged pages

K = TypeVar("K", bound=Hashable)


class Series(NamedTuple):
    """A metric family of a table."""

    name: str  # of its samples: that of a counter ends with _total
    kind: str  # "counter", "gauge" or "unknown"
    doc: str


class _Row:
    __slots__ = ("labels", "page", "values")

    def __init__(self, page: _Page, labels: str) -> None:
        self.page = page
        self.labels = labels
        self.values: Sequence[float | None] = ()


class _Page:
    __slots__ = ("rows", "stale", "texts")

    def __init__(self, series: int) -> None:
        self.rows: dict[_Row, None] = {}
        self.stale: set[int] = set()  # numbers of series
        self.texts: list[bytes] = [b""] * series


class LineTable(Generic[K]):
    """Text in pages of PAGE_ROWS rows of one series, remade only if a value changed: 10,000 partitions have ten series each.

    Rows keep the order of their first `put`, unless they fill the room of dropped ones. `labels` returns those of a row's key, as from
    `labels_text`; called once for each row.
    """

    def __init__(self, series: Sequence[Series], labels: Callable[[K], str]) -> None:
        self.series = tuple(series)
        self._labels = labels
        self._rows: dict[K, _Row] = {}
        self._pages: dict[_Page, None] = {}
        self._room: dict[_Page, None] = {}  # pages with fewer than PAGE_ROWS rows

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def keys(self) -> list[K]:
        return list(self._rows)

    def put(self, key: K, values: Sequence[float | None]) -> None:
        """One value for each series; None: the row has no sample in this series."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._new_row(key)
            row.values = values
            row.page.stale.update(range(len(self.series)))
            return
        former = row.values
        if former == values:
            return
        row.values = values
        stale = row.page.stale
        for number, value in enumerate(values):
            if value != former[number]:
                stale.add(number)

    def _new_row(self, key: K) -> _Row:
        page = next(iter(self._room), None)
        if page is None:
            page = _Page(len(self.series))
            self._pages[page] = self._room[page] = None
        row = _Row(page, self._labels(key))
        page.rows[row] = None
        if len(page.rows) >= PAGE_ROWS:
            del self._room[page]
        return row

    def drop(self, key: K) -> None:
        row = self._rows.pop(key, None)
        if row is None:
            return
        page = row.page
        del page.rows[row]
        if page.rows:
            page.stale.update(range(len(self.series)))
            self._room[page] = None
        else:
            del self._pages[page]
            self._room.pop(page, None)

    def written(self, out: list[bytes], *, openmetrics: bool) -> Work:
        """Appends the text of all series to `out`, in slices."""
        for number, series in enumerate(self.series):
            if not self._pages:
                return
            out.append(header(series, openmetrics=openmetrics))
            yield from self.lines(number, out)

    def lines(self, number: int, out: list[bytes]) -> Work:
        """Appends the lines of one series to `out`, without its header, in slices."""
        name = self.series[number].name
        units = 0.0
        for page in list(self._pages):
            if number in page.stale:
                page.stale.discard(number)
                page.texts[number] = _text(name, number, page.rows)
                units += len(page.rows) / ROWS_PER_UNIT
            else:
                units += 1 / PAGES_PER_UNIT
            out.append(page.texts[number])
            if units >= 1:
                yield int(units)
                units = 0.0
        yield 1


def _text(name: str, number: int, rows: Iterator[_Row] | dict[_Row, None]) -> bytes:
    return "".join(
        [f"{name}{row.labels} {value}\n" for row in rows if (value := row.values[number]) is not None]
    ).encode()


def header(series: Series, *, openmetrics: bool) -> bytes:
    """The lines HELP and TYPE of a series, as prometheus_client writes them."""
    name, kind = series.name, series.kind
    if openmetrics:
        name = name.removesuffix("_total") if kind == "counter" else name
    elif kind == "unknown":
        kind = "untyped"
    doc = series.doc.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {doc}\n# TYPE {name} {kind}\n".encode()


def escaped(value: str) -> str:
    """A label's value between quotation marks. Lone surrogates, which UTF-8 cannot carry, become question marks."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text.encode("utf-8", "replace").decode()


def labels_text(**labels: str) -> str:
    """The labels of a sample, with braces; empty without labels."""
    found = ",".join(f'{name}="{escaped(value)}"' for name, value in sorted(labels.items()))
    return f"{{{found}}}" if found else ""


def partition_labels(topic: str, number: int) -> str:
    """As `labels_text(topic=topic, partition=str(number))`, faster for many partitions of a topic."""
    return f'{{partition="{number}",topic="{_escaped_topic(topic)}"}}'


_escaped_topic = lru_cache(maxsize=256)(escaped)
