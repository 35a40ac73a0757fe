"""Input of `produce`: blocks of bytes to lines, lines to records. Lines above the limit are refused without being buffered."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.cli.record_json import BadRecord, record_from_json
from barnabas.cli.record_writer import NO_TIMESTAMP, InputPlace, RecordWriter
from barnabas.client.errors import RecordTooLarge
from barnabas.client.types import Headers
from barnabas.protocol.record_codec import NewRecord


@dataclass(frozen=True)
class LineFormat:
    """What a line means.

    Attributes:
        json: a line is a record in JSON (`record_json`).
        key: of every record.
        key_separator: the bytes before it are the key; a line without it has none.
        null_marker: a key or a value that equals it is null.
        tombstone: an empty value is null.
        headers: of every record, before those of a JSON line.
        crlf: the carriage return at the end of a line is removed.
        timestamp: of every record without its own, in ms; None: the present time.
        partition: of every record, instead of its own; None: its own, or the partition that its key chooses.
    """

    json: bool = False
    key: bytes | None = None
    key_separator: bytes | None = None
    null_marker: bytes | None = None
    tombstone: bool = False
    headers: Headers = ()
    crlf: bool = False
    timestamp: int | None = None
    partition: int | None = None

    @property
    def only_values(self) -> bool:
        """Whether a line is the value of a record that has nothing else."""
        return not (
            self.json
            or self.key is not None
            or self.key_separator
            or self.null_marker is not None
            or self.tombstone
            or self.headers
        )

    @property
    def only_pairs(self) -> bool:
        """Whether a line is a key and a value, and nothing else changes them."""
        return not (self.json or self.null_marker is not None or self.tombstone or self.headers) and bool(
            self.key_separator
        )

    def record(self, line: bytes) -> tuple[NewRecord, int | None]:
        """The record of a line and its partition (None: its key chooses). Raises BadRecord: the line is not a record in JSON."""
        timestamp = NO_TIMESTAMP if self.timestamp is None else self.timestamp
        if self.json:
            partition, own, key, value, headers = record_from_json(line)
            headers = (*self.headers, *headers) if self.headers else headers
            key = self.key if key is None else key
            record = NewRecord(key, value, timestamp if own is None else own, headers)
            return record, partition if self.partition is None else self.partition
        key, value = self.key, line
        if self.key_separator:
            before, found, after = line.partition(self.key_separator)
            if found:
                key, value = before, after
        empty = self.tombstone and not value
        marked = self.null_marker
        return (
            NewRecord(
                None if key == marked else key, None if empty or value == marked else value, timestamp, self.headers
            ),
            self.partition,
        )


class LineInput:
    """The lines of one file.

    Attributes:
        lines: the number of lines so far.

    Args:
        file: the place of the file among the files.
        line_bytes_max: a longer line is refused.
    """

    def __init__(self, writer: RecordWriter, form: LineFormat, file: int, line_bytes_max: int) -> None:
        self.lines = 0
        self._writer = writer
        self._form = form
        self._file = file
        self._line_bytes_max = line_bytes_max
        self._begun: list[bytes] = []  # blocks of a line whose end has not arrived
        self._begun_bytes = 0
        self._skipping = False  # the line was refused; its end has not arrived

    async def feed(self, block: bytes) -> None:
        """Takes the next block."""
        if self._skipping or b"\n" not in block:
            block = self._without_long_line(block)
            if b"\n" not in block:
                return
        if self._begun:
            block = b"".join((*self._begun, block))
            self._begun, self._begun_bytes = [], 0
        lines = block.split(b"\n")
        begun = lines.pop()
        if begun:
            self._keep(begun)
        await self._take(lines)

    async def end(self) -> None:
        """The file has ended: its last line may lack a line feed."""
        last = b"".join(self._begun)
        self._begun = []
        if last:
            await self._take([last])

    def _keep(self, begun: bytes) -> None:
        self._begun.append(begun)
        self._begun_bytes += len(begun)

    def _without_long_line(self, block: bytes) -> bytes:
        """The rest of a block after the end of a line that is too long; b"" if that end is not in the block."""
        if not self._skipping:
            self._keep(block)
            if self._begun_bytes > self._line_bytes_max:
                self._begun, self._begun_bytes = [], 0
                self._skipping = True
                error = RecordTooLarge(f"it is longer than max.request.size={self._line_bytes_max}")
                self.lines += 1
                self._writer.refuse(InputPlace(self._file, self.lines), error)
            return b""
        _, end, rest = block.partition(b"\n")
        if end:
            self._skipping = False
            if rest and b"\n" not in rest:
                self._keep(rest)
        return rest if end else b""

    async def _take(self, lines: list[bytes]) -> None:
        if not lines:
            return
        place = InputPlace(self._file, self.lines + 1)
        self.lines += len(lines)
        form = self._form
        if form.crlf:
            lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
        if form.only_values:
            await self._writer.add_values(lines, place)
            return
        if form.only_pairs and form.key_separator:
            separator = form.key_separator
            keys, found, values = zip(*[line.partition(separator) for line in lines], strict=True)
            if all(found):
                await self._writer.add_pairs(keys, values, place)
                return
        for number, line in enumerate(lines, start=place.line):
            if self._writer.stopped is not None:
                return
            here = InputPlace(self._file, number)
            try:
                record, partition = form.record(line)
            except BadRecord as error:
                self._writer.refuse(here, error)
                self._writer.stopped = error
                return
            await self._writer.add_record(record, partition, here)
