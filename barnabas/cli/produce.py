"""`barnabas produce TOPIC`: writes lines, JSON lines or whole files as records.

Reads blocks and sends large batches; memory does not grow with the input. At Ctrl-C and SIGTERM the lines that were read are
still sent, an open transaction is aborted, and the report names what has no acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from cyclopts import Parameter

from barnabas.cli.arguments import time_argument, unescaped
from barnabas.cli.client_properties import Properties, WrongCall, extra_arguments
from barnabas.cli.pipes import BlockInput
from barnabas.cli.record_json import BadRecord, record_from_json
from barnabas.cli.record_writer import BATCH_BYTES, NO_TIMESTAMP, InputPlace, RecordWriter
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked, wrong_call
from barnabas.client.errors import KafkaError, RecordTooLarge
from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.producer import Producer
from barnabas.client.types import CompressionType, Headers
from barnabas.protocol.record_codec import NewRecord

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


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


BLOCK_BYTES: Final = 256 * 1024
LINGER_S: Final = 0.005  # lines wait for more of a pipe so long
FLUSH_S: Final = 0.4  # after a signal: time to send what was read
STOP_MS: Final = 50  # then: time to close the connections
DELIVERY_TIMEOUT_MS: Final = 30_000  # without --timeout: an election or a restart of a broker must not lose records
STANDARD_INPUT: Final = Path("-")
SHOWN_AFTER_S: Final = 0.5
EVERY_S: Final = 0.1


@Parameter(name="*")
@dataclass(frozen=True)
class LineOptions:
    """What a line means, as the user says it."""

    key: Annotated[str | None, Parameter(help="The key of every record.")] = None
    key_separator: Annotated[
        str | None,
        Parameter(name=["--key-separator", "-K"], help=r"The text before it in each line is the key; also \t \0 \x1f."),
    ] = None
    header: Annotated[
        tuple[str, ...], Parameter(name=["--header", "-H"], help="NAME=VALUE, or NAME for null; repeated.")
    ] = ()
    json_: Annotated[bool, Parameter(name="--json", help="Lines are records as `consume --json` writes them.")] = False
    tombstone: Annotated[bool, Parameter(name=["--tombstone", "-Z"], help="Write null for an empty value.")] = False
    null_marker: Annotated[str | None, Parameter(help="A key or a value that equals this text is null.")] = None
    crlf: Annotated[bool, Parameter(help="Remove the carriage return at the end of a line.")] = False
    partition: Annotated[
        int | None, Parameter(name=["--partition", "-p"], help="Write all records to this partition.")
    ] = None
    timestamp: Annotated[str | None, Parameter(help="Timestamp of every record: ms since 1970, or ISO 8601.")] = None

    def line_format(self, *, whole: bool) -> LineFormat:
        """The format of the lines; with `whole` that of whole files.

        Raises:
            WrongCall: an option cannot be used, or two exclude each other.
        """
        if self.partition is not None and self.partition < 0:
            raise WrongCall(f"--partition {self.partition}: partitions are numbered from 0")
        if self.key_separator == "":
            raise WrongCall("--key-separator is empty")
        if self.key is not None and self.key_separator:
            raise WrongCall("--key and --key-separator exclude each other")
        if self.json_ and (self.key_separator or self.tombstone or self.null_marker is not None):
            raise WrongCall("--json has keys and nulls in its lines: no --key-separator, --tombstone or --null-marker")
        if whole and (self.json_ or self.key_separator or self.crlf):
            raise WrongCall("--whole reads no lines: no --json, --key-separator or --crlf")
        return LineFormat(
            json=self.json_,
            key=_data(self.key, "--key"),
            key_separator=_data(self.key_separator, "--key-separator"),
            null_marker=_data(self.null_marker, "--null-marker"),
            tombstone=self.tombstone,
            headers=tuple(_header(text) for text in self.header),
            crlf=self.crlf,
            timestamp=None if self.timestamp is None else time_argument(self.timestamp, "--timestamp"),
            partition=self.partition,
        )


DEFAULT_LINES: Final = LineOptions()


def _data(text: str | None, option: str) -> bytes | None:
    return None if text is None else unescaped(text, option)


def _header(text: str) -> tuple[str, bytes | None]:
    name, given, value = text.partition("=")
    if not name:
        raise WrongCall(f"--header {text!r}: NAME=VALUE is expected")
    return name, value.encode("utf-8", "surrogateescape") if given else None


def produce(
    topic: Annotated[str, Parameter(help="Name of the topic; created if the broker creates topics automatically.")],
    *,
    file: Annotated[
        tuple[Path, ...],
        Parameter(name=["--file", "-f"], help="Read this file; repeated. --file=- is standard input."),
    ] = (),
    whole: Annotated[bool, Parameter(help="Each file is the value of one record.")] = False,
    compression: Annotated[
        CompressionType | None, Parameter(name=["--compression", "-z"], help="gzip, snappy, lz4 or zstd.")
    ] = None,
    acks: Annotated[Literal["all", "-1", "0", "1"] | None, Parameter(help="Replicas that acknowledge.")] = None,
    transactional_id: Annotated[str | None, Parameter(help="Write all lines in one transaction: all or none.")] = None,
    transaction_size: Annotated[
        int | None,
        Parameter(help="With --transactional-id: commit after this many records, and begin the next transaction."),
    ] = None,
    properties: Properties = (),
    lines: LineOptions = DEFAULT_LINES,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Write lines of standard input, or of files, to a topic."""
    try:
        form = lines.line_format(whole=whole)
        if transaction_size is not None:
            _check_size(transaction_size, transactional_id)
        settings = extra_arguments("producer", properties)
        given = {"compression_type": compression, "acks": acks, "transactional_id": transactional_id}
        settings |= {name: value for name, value in given.items() if value is not None}
        files = [STANDARD_INPUT] if not file else list(file)
        for path in files:
            if path != STANDARD_INPUT and not path.exists():
                raise WrongCall(f"there is no file {path}")
        producer = _producer(connection, settings)
    except WrongCall as error:
        return wrong_call("produce", str(error))
    logging.getLogger("barnabas.client").setLevel(logging.CRITICAL)  # this command reports failures itself
    run = _Run(producer, topic, form, files, whole=whole, transaction_size=transaction_size or 0)
    return worked("produce", connection, run.work(), check=True, about=f"transactional-id:{transactional_id}")


def _check_size(transaction_size: int, transactional_id: str | None) -> None:
    if transactional_id is None:
        raise WrongCall("--transaction-size needs --transactional-id")
    if transaction_size < 1:
        raise WrongCall(f"--transaction-size {transaction_size}: it must be at least 1")


def _producer(connection: Connection, settings: dict[str, Any]) -> Producer:
    """The producer. Batches do not linger in it, because they are made here."""
    if not any(source.get("delivery.timeout.ms") is not None for source in connection.sources):
        limit_ms = connection.timeout_ms if connection.timeout is not None else DELIVERY_TIMEOUT_MS
        settings = {"delivery_timeout_ms": max(limit_ms, connection.timeout_ms), **settings}
    try:
        return connection.producer(**settings)
    except KafkaError as error:
        raise WrongCall(str(error)) from None


class _Run:
    """One run of the command."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        form: LineFormat,
        files: list[Path],
        *,
        whole: bool,
        transaction_size: int,
    ) -> None:
        self._producer = producer
        self._config = config = producer.config
        self._topic = topic
        self._form = form
        self._files = files
        self._whole = whole
        self._transaction_size = transaction_size
        self._reading = "the input"
        self._read = 0  # records of the files that have ended
        self._input: LineInput | None = None
        self._writer = RecordWriter(
            producer,
            topic,
            batch_bytes=config.max_batch_size if config.max_batch_size != _DEFAULT_BATCH_SIZE else BATCH_BYTES,
            record_bytes_max=config.max_request_size,
            partition=form.partition,
            timestamp=form.timestamp,
            transaction_size=transaction_size if config.transactional_id is not None else None,
        )

    async def work(self) -> None:
        """Writes the files; prints the report."""
        ended = False
        try:
            await self._producer.start()
            await self._write()
            ended = True
        finally:
            await self._producer.stop(timeout_ms=None if ended else STOP_MS)

    async def _write(self) -> None:
        try:
            with InputProgress(self._files) as progress:
                for number, path in enumerate(self._files):
                    self._reading = "the input" if path == STANDARD_INPUT else str(path)
                    await self._send_file(number, path, progress)
                    if self._writer.stopped is not None:
                        break
                await self._writer.finish()
        except asyncio.CancelledError:
            await self._wind_up()
            print(f"barnabas produce: interrupted; {self._report()}", file=sys.stderr, flush=True)
            raise
        except OSError as error:
            await self._wind_up()
            raise KafkaError(f"cannot read {self._reading}: {error.strerror or error}; {self._report()}") from None
        except KafkaError as error:
            self._writer.stopped = self._writer.stopped or error
        self._end()

    @property
    def _records(self) -> int:
        """The number of records that were read."""
        return self._read + (self._input.lines if self._input is not None else 0)

    async def _wind_up(self) -> None:
        """After an interruption: sends what was read, or aborts the open transaction, within FLUSH_S."""
        try:
            async with asyncio.timeout(FLUSH_S):
                if self._config.transactional_id is not None:
                    await self._writer.abort()
                else:
                    await self._writer.flush()
        except (TimeoutError, KafkaError):
            pass

    async def _send_file(self, number: int, path: Path, progress: InputProgress) -> None:
        descriptor = sys.stdin.fileno() if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)
        try:
            source = BlockInput(descriptor)
            if self._whole:
                await self._send_whole(number, source, progress)
            else:
                await self._send_lines(number, source, progress)
        finally:
            if path != STANDARD_INPUT:
                os.close(descriptor)

    async def _send_lines(self, number: int, source: BlockInput, progress: InputProgress) -> None:
        writer = self._writer
        lines = self._input = LineInput(writer, self._form, number, self._config.max_request_size)
        while writer.stopped is None:
            block = await source.read(BLOCK_BYTES, LINGER_S if writer.waiting else None)
            if block is None:
                await writer.send_waiting()
            elif block:
                await lines.feed(block)
                progress.advance(len(block))
            else:
                await lines.end()
                break
        self._read += lines.lines
        self._input = None

    async def _send_whole(self, number: int, source: BlockInput, progress: InputProgress) -> None:
        blocks: list[bytes] = []
        size = 0
        while block := await source.read(BLOCK_BYTES):
            blocks.append(block)
            size += len(block)
            progress.advance(len(block))
            if size > self._config.max_request_size:
                break  # the writer refuses it, with its size
        record, partition = replace(self._form, timestamp=None).record(b"".join(blocks))
        timestamp = NO_TIMESTAMP if self._form.timestamp is None else self._form.timestamp
        self._read += 1
        await self._writer.add_record(
            NewRecord(record.key, record.value, timestamp, record.headers), partition, InputPlace(number, 0)
        )

    # -- the report ----------------------------------------------------------------------------------------------------

    def _report(self) -> str:
        writer = self._writer
        text = f"wrote {_records(writer.written)} to {self._topic}"
        if self._config.required_acks == 0:
            text = f"sent {_records(writer.written)} to {self._topic} without acknowledgement (acks=0)"
        if self._config.transactional_id is not None and (writer.transactions != 1 or self._transaction_size):
            plural = "" if writer.transactions == 1 else "s"
            text += f" in {writer.transactions} committed transaction{plural}"
        left = self._records - writer.written - writer.failed
        if writer.failed:
            text += f"; {writer.failed} not written"
        if self._config.transactional_id is not None:
            if writer.in_doubt:
                text += (
                    f"; {writer.in_doubt} in a transaction whose commit was not answered: it may be committed or not"
                )
                left -= writer.in_doubt
            return f"{text}; {left} not committed" if left > 0 else text
        if writer.unknown:
            text += f"; {writer.unknown} without an acknowledgement: the brokers may have them or not"
        if left > writer.unknown:
            text += f"; {left - writer.unknown} not sent"
        return text

    def _end(self) -> None:
        """Prints the report of a run to the end. Raises KafkaError: records were not written."""
        failure = self._writer.first_failure
        if failure is None and self._writer.stopped is None:
            print(self._report(), file=sys.stderr)
            return
        if failure is None:
            raise KafkaError(f"{self._writer.stopped}; {self._report()}")
        raise KafkaError(f"{self._where(failure.place)}: {failure.error}; {self._report()}") from failure.error

    def _where(self, place: InputPlace) -> str:
        path = self._files[place.file]
        if not place.line:
            return str(path)
        return f"line {place.line}" if path == STANDARD_INPUT else f"{path} line {place.line}"


_DEFAULT_BATCH_SIZE: Final = ProducerConfig().max_batch_size


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


class InputProgress:
    """Shows on stderr how much of the input was read, if stderr is a terminal and the input is not. `files`: "-" is standard input."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._read = 0
        self._total: int | None = None
        self._next = time.monotonic() + SHOWN_AFTER_S
        self._shown = sys.stderr.isatty() and not (Path("-") in files and sys.stdin.isatty())
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._shown:
            self._total = _total(self._files)
        elif sys.stderr.isatty():
            print("each line becomes a record; Ctrl-D ends the input", file=sys.stderr)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._read)
            self._progress.stop()

    def advance(self, count: int) -> None:
        """Counts bytes that were read."""
        self._read += count
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        if self._progress is None:
            self._begin()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._read)
            self._progress.refresh()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(file=sys.stderr), auto_refresh=False, transient=True)
        self._progress.start()
        self._task = self._progress.add_task("", total=self._total)


def _total(files: Sequence[Path]) -> int | None:
    """The size of all files; None if one of them is not a regular file."""
    total = 0
    for path in files:
        try:
            status = os.fstat(sys.stdin.fileno()) if path == Path("-") else path.stat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total
