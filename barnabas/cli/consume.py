"""`barnabas consume TOPIC…`: prints records. A group member commits what it has printed and leaves at the end, also after Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import heapq
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from barnabas.cli.arguments import time_argument
from barnabas.cli.client_properties import Properties, WrongCall, extra_arguments
from barnabas.cli.pipes import BlockOutput
from barnabas.cli.record_format import Decode, Read, Shown, as_json, as_lines, as_template, as_values, for_terminal
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked, wrong_call
from barnabas.cli.streams import OutputUnwritable
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import IllegalState, KafkaError, UnknownTopicOrPartition
from barnabas.client.group.group import RebalanceListener
from barnabas.client.types import OffsetAndMetadata, TopicPartition, ValueRun
from barnabas.errors import ErrorCode
from barnabas.runtime.scope import Scope

if TYPE_CHECKING:
    from barnabas.client.admin import Admin

POLL_RECORDS: Final = 10_000
POLL_MS: Final = 250
COMMIT_EVERY_S: Final = 1.0
LAST_COMMIT_S: Final = 0.4  # after a signal: time for the last commit


class RecordReader:
    """Prints the records of a started consumer.

    Args:
        ends: the offset at which each partition ends; None: it does not end.
        left: the number of records to print.
        grouped: the consumer is a member of a group, and commits.
    """

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        output: BlockOutput,
        shown: Shown,
        *,
        ends: Mapping[TopicPartition, int] | None,
        left: int,
        grouped: bool,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._shown = shown
        self._ends = ends
        self._left = left
        self._grouped = grouped
        self._unprinted: dict[TopicPartition, int] = {}  # the first offset that is not printed, if below the position
        self._dirty = False  # records were printed since the last commit
        self._commit_at = 0.0

    async def read(self) -> None:
        """Prints records until the end or the number of records; without either limit, until it is cancelled.

        Raises OutputUnwritable: the reader of the output has ended, or the disk is full.
        """
        try:
            while self._left > 0 and not await self._at_end():
                polled = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=min(self._left, POLL_RECORDS))
                if polled:
                    await self._print([record for tp, records in polled.items() for record in self._kept(tp, records)])
                elif self._output.reader_gone():
                    raise OutputUnwritable(errno.EPIPE, "Broken pipe")
                self._commit_if_due()
        finally:
            await self._last_commit()

    async def before_revoke(self) -> None:
        """Commits before partitions go to another member."""
        await self._commit()

    def _kept(self, tp: TopicPartition, records: Sequence[Any]) -> Sequence[Any]:
        """The records before the end of their partition. A partition that has reached its end is read no further."""
        if self._ends is None or tp not in self._ends or _last_offset(records[-1]) < self._ends[tp]:
            return records
        end = self._ends[tp]
        self._consumer.pause(tp)
        self._unprinted[tp] = end
        before = [record for record in records if record.offset < end]
        return [record.part(0, end) if isinstance(record, ValueRun) else record for record in before]

    async def _at_end(self) -> bool:
        """Whether every partition that this consumer reads is at its end."""
        ends = self._ends
        if ends is None:
            return False
        mine = self._consumer.assignment()
        return bool(mine) and all([await self._consumer.position(tp) >= ends.get(tp, 0) for tp in sorted(mine)])

    async def _print(self, records: list[Read]) -> None:
        texts = self._shown(records)
        before = self._output.written
        try:
            await self._output.write(b"".join(texts))
        except BaseException:
            self._note_unprinted(records, texts, self._output.written - before)
            raise
        self._left -= len(records)
        self._dirty = True

    def _note_unprinted(self, records: list[Read], texts: list[bytes], written: int) -> None:
        """Notes the first record of each partition that was not printed whole."""
        for record, text in zip(records, texts, strict=True):
            written -= len(text)
            tp = TopicPartition(record.topic, record.partition)
            if written < 0 and tp not in self._unprinted:
                self._unprinted[tp] = record.offset
            elif written < 0:
                self._unprinted[tp] = min(self._unprinted[tp], record.offset)
        self._dirty = True

    # -- commits -------------------------------------------------------------------------------------------------------

    async def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata | int]:
        offsets: dict[TopicPartition, OffsetAndMetadata | int] = {}
        for tp in self._consumer.assignment():
            position = await self._consumer.position(tp)
            offsets[tp] = min(position, self._unprinted.get(tp, position))
        return offsets

    def _commit_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._grouped and self._dirty and now >= self._commit_at and not self._unprinted:
            self._commit_at = now + COMMIT_EVERY_S
            self._dirty = False
            self._consumer.commit_soon()

    async def _commit(self) -> None:
        if self._grouped and (self._dirty or self._unprinted):
            self._dirty = False
            await self._consumer.commit(await self._offsets() if self._unprinted else None)

    async def _last_commit(self) -> None:
        if not self._grouped:
            return
        self._dirty = True  # a commit in the background may not have ended
        try:
            async with asyncio.timeout(LAST_COMMIT_S if _cancelled() else None):
                await self._commit()
        except TimeoutError:
            print("barnabas consume: the last commit was not answered in time", file=sys.stderr)
        except KafkaError as error:
            print(f"barnabas consume: the last commit failed: {error}", file=sys.stderr)


def _last_offset(record: Read | ValueRun) -> int:
    return record.offset + (len(record.values) - 1 if isinstance(record, ValueRun) else 0)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class CommitsBeforeRevoke(RebalanceListener):
    """Commits what was printed before partitions are revoked."""

    reader: RecordReader | None = None

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Called before these partitions are revoked."""
        if self.reader is not None:
            await self.reader.before_revoke()

    async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        """Called after these partitions were lost: a commit would be refused."""


async def read_tail(
    consumer: Consumer[Any, Any], partitions: Sequence[TopicPartition], count: int, poll_ms: int = POLL_MS
) -> list[Read]:
    """The last `count` records of all partitions together, by their timestamps.

    Offsets without records (control records, aborted transactions, compaction) make it read further back.
    """
    earliest = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    found: list[list[Read]] = []
    for tp in partitions:
        span = count
        while True:
            start = max(earliest[tp], ends[tp] - span)
            records = await _between(consumer, tp, start, ends[tp], poll_ms)
            if len(records) >= count or start == earliest[tp]:
                found.append(records[-count:] if count else [])
                break
            span *= 4
    merged = heapq.merge(*found, key=lambda record: record.timestamp)
    return list(merged)[-count:] if count else []


async def _between(consumer: Consumer[Any, Any], tp: TopicPartition, start: int, end: int, poll_ms: int) -> list[Read]:
    consumer.assign([tp])
    consumer.seek(tp, start)
    records: list[Read] = []
    while await consumer.position(tp) < end:
        for polled in (await consumer.getmany(timeout_ms=poll_ms)).values():
            records += [record for record in polled if record.offset < end]
    return records


TAIL_MAX: Final = 100_000
LOOK_S: Final = 1.0  # between two looks for new topics that match a pattern
LEAVE_S: Final = 0.2  # after a signal: time to leave the group
Edge = Literal["earliest", "latest"]


@Parameter(name="*")
@dataclass(frozen=True)
class PrintOptions:
    """How a record is printed, as the user says it."""

    format: Annotated[
        str, Parameter(name=["--format", "-f"], help=r"value, json, or a template such as '%t-%p@%o %k=%s\n'.")
    ] = "value"
    json_: Annotated[
        bool,
        Parameter(name="--json", help="One JSON object a record, on one line (indented on a terminal)."),
    ] = False
    print_key: Annotated[bool, Parameter(help="Print the key and a tab before each value.")] = False
    decode: Annotated[Decode | None, Parameter(help="Print values as utf-8, hex, base64 or json.")] = None
    decode_key: Annotated[Decode | None, Parameter(help="The same for keys.")] = None

    @property
    def values_only(self) -> bool:
        """Whether nothing but the values is printed, as they are."""
        return self == PrintOptions()

    def shown(self) -> Shown:
        """The function that makes the text of records.

        Raises:
            WrongCall: an unknown format, token or escape, or options that exclude each other.
        """
        indent = 2 if sys.stdout.isatty() else None
        if self.json_ and self.format not in ("value", "json"):
            raise WrongCall("--json and a template exclude each other")
        if self.json_ or self.format == "json":
            if self.print_key:
                raise WrongCall("--json shows the key already: no --print-key")
            return as_json(self.decode, self.decode_key, indent=indent)
        if self.format == "value":
            return as_values(self.decode, self.decode_key, print_key=self.print_key, indent=indent)
        if "%" not in self.format and "\\" not in self.format:
            raise WrongCall(f"--format {self.format!r} is neither value, json nor a template with tokens such as %s")
        if self.print_key:
            raise WrongCall("a template shows the key by %k: no --print-key")
        return as_template(self.format, self.decode, self.decode_key)


DEFAULT_PRINT: Final = PrintOptions()


def consume(
    *topics: Annotated[str, Parameter(help="Topics to read.")],
    pattern: Annotated[str | None, Parameter(help="Topics whose whole name matches this regular expression.")] = None,
    partition: Annotated[
        tuple[int, ...], Parameter(name=["--partition", "-p"], help="Only this one; may be repeated.")
    ] = (),
    from_beginning: Annotated[bool, Parameter(help="Begin at the first record [default: at new records].")] = False,
    offset: Annotated[
        str | None,
        Parameter(
            name=["--offset", "-o"],
            help="Begin at this offset, N before the end (--offset=-N), earliest or latest, in each partition.",
            allow_leading_hyphen=True,
        ),
    ] = None,
    since: Annotated[str | None, Parameter(help="Begin at this time, or at a duration before now (10m).")] = None,
    until: Annotated[str | None, Parameter(help="End before this time, or at a duration before now.")] = None,
    tail: Annotated[int | None, Parameter(help="Print the last N records of all partitions and end.")] = None,
    max_records: Annotated[
        int | None, Parameter(name=["--max-records", "-n"], help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[
        bool, Parameter(name=["--exit-at-end", "-e"], help="Stop at the present end of the topic.")
    ] = False,
    group: Annotated[str | None, Parameter(help="Consume as a member of this group; commit what is printed.")] = None,
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed", "raw"],
        Parameter(help="read_committed leaves out open and aborted transactions; raw shows control records, too."),
    ] = "read_committed",
    properties: Properties = (),
    printing: PrintOptions = DEFAULT_PRINT,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Print records of topics."""
    try:
        limits = parse_range(
            offset=offset, since=since, until=until, from_beginning=from_beginning, exit_at_end=exit_at_end
        )
        chosen = _Chosen(topics, pattern, frozenset(partition), group, tail, max_records)
        chosen.check(moved=(offset, since, until, tail))
        # Values alone are fast; a group's commits and a number of records need each record's offset.
        runs = printing.values_only and isolation != "raw" and group is None and (max_records, tail) == (None, None)
        settings = {
            "isolation_level": "read_uncommitted" if isolation == "raw" else isolation,
            **extra_arguments("consumer", properties),
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest" if limits.begin == "earliest" else "latest",
            "raw_records": isolation == "raw",
            "value_runs": runs,
        }
        shown = for_terminal(as_lines if runs else printing.shown())
        run = _Run(connection, _consumer(connection, settings), chosen, limits, shown)
    except WrongCall as error:
        return wrong_call("consume", str(error))
    return worked("consume", connection, run.work(), check=True, about="" if group is None else f"group:{group}")


def _consumer(connection: Connection, settings: dict[str, Any]) -> Consumer[Any, Any]:
    try:
        return connection.consumer(**settings)
    except IllegalState as error:
        raise WrongCall(error.message) from None


@dataclass(frozen=True)
class _Chosen:
    """What is read, and how much of it."""

    topics: tuple[str, ...]
    pattern: str | None
    partitions: frozenset[int]
    group: str | None
    tail: int | None
    max_records: int | None

    def check(self, moved: Sequence[object]) -> None:
        """Refuses contradictory options. Raises WrongCall: it names what to change."""
        if bool(self.topics) == (self.pattern is not None):
            raise WrongCall(
                "name topics, or --pattern" if not self.topics else "topics and --pattern exclude each other"
            )
        for name in (*self.topics, self.group or ""):
            if not name.isascii() and name != name.encode("utf-8", "replace").decode():
                raise WrongCall(f"the argument {name!r} is not UTF-8 text")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise WrongCall(f"--pattern {self.pattern!r}: {error}") from None
        for number in self.partitions:
            if number < 0:
                raise WrongCall(f"--partition {number}: partitions are numbered from 0")
        if self.max_records is not None and self.max_records < 0:
            raise WrongCall(f"--max-records {self.max_records}: it must be at least 0")
        if self.tail is not None and not 0 <= self.tail <= TAIL_MAX:
            raise WrongCall(f"--tail {self.tail}: it must be from 0 to {TAIL_MAX}")
        if self.group is not None and (self.partitions or any(each is not None for each in moved)):
            raise WrongCall(
                "with --group the group decides the partitions and offsets: no --partition, --offset, --since, --until "
                "or --tail; `barnabas group reset-offsets` moves a group"
            )
        if self.tail is not None and any(each is not None for each in moved[:-1]):
            raise WrongCall("--tail reads up to the present end: no --offset, --since or --until")


class _Run:
    """One run of the command."""

    def __init__(
        self, connection: Connection, consumer: Consumer[Any, Any], chosen: _Chosen, limits: Range, shown: Shown
    ) -> None:
        self._connection = connection
        self._consumer = consumer
        self._chosen = chosen
        self._limits = limits
        self._shown = shown

    async def work(self) -> None:
        """Prints the records."""
        output = BlockOutput.standard()
        consumer = self._consumer
        await consumer.start()
        try:
            partitions = await self._partitions()
            if self._chosen.tail is not None:
                await self._print_tail(partitions, output)
            elif self._chosen.group is not None:
                await self._read_in_group(partitions, output)
            else:
                starts = await self._limits.starts(consumer, partitions)
                ends = await self._limits.ends(consumer, partitions)
                consumer.assign(partitions)
                for tp, offset in starts.items():
                    consumer.seek(tp, offset)
                if ends is None and self._limits.only_new and sys.stderr.isatty():
                    print("waiting for new records; --from-beginning shows older ones, too", file=sys.stderr)
                async with Scope("new partitions") as scope:
                    if ends is None and (self._chosen.pattern is not None or not self._chosen.partitions):
                        scope.start(self._follow(partitions), name="new partitions")
                    await self._reader(output, ends).read()
        finally:
            output.close()
            await self._stop()

    async def _follow(self, partitions: list[TopicPartition]) -> None:
        """Also reads the topics and partitions that are created from now on, from their first records.

        It begins after a pause, so that its imports and its connection do not delay the first records.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                async with self._connection.admin() as admin:
                    while True:
                        partitions = await self._with_new(admin, partitions)
                        await asyncio.sleep(LOOK_S)
            except KafkaError:  # the reader tells what is wrong; the next look may succeed
                continue

    async def _with_new(self, admin: Admin, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Looks once for new partitions, and reads them; returns all that are read."""
        pattern, wanted, read = self._chosen.pattern, self._chosen.partitions, set(partitions)
        topics = self._chosen.topics if pattern is None else await _matching(admin, pattern)
        infos = await admin.describe_topics(topics)
        there = [TopicPartition(name, number) for name in topics for number in range(len(infos[name].partitions))]
        found = [tp for tp in there if tp not in read and (not wanted or tp.partition in wanted)]
        if not found:
            return partitions
        starts = await self._consumer.beginning_offsets(found)
        partitions = [*partitions, *found]
        self._consumer.assign(partitions)
        for tp, offset in starts.items():
            self._consumer.seek(tp, offset)
        return partitions

    async def _stop(self) -> None:
        """Leaves the group and closes; after a signal not longer than LEAVE_S."""
        task = asyncio.current_task()
        interrupted = task is not None and task.cancelling() > 0
        try:
            async with asyncio.timeout(LEAVE_S if interrupted else None):
                await self._consumer.stop()
        except TimeoutError:
            pass

    def _reader(self, output: BlockOutput, ends: Any) -> RecordReader:
        left = self._chosen.max_records
        return RecordReader(
            self._consumer,
            output,
            self._shown,
            ends=ends,
            left=sys.maxsize if left is None else left,
            grouped=self._chosen.group is not None,
        )

    async def _print_tail(self, partitions: list[TopicPartition], output: BlockOutput) -> None:
        records = await read_tail(self._consumer, partitions, self._chosen.tail or 0)
        limit = self._chosen.max_records
        await output.write(b"".join(self._shown(records if limit is None else records[:limit])))

    async def _read_in_group(self, partitions: list[TopicPartition], output: BlockOutput) -> None:
        listener = CommitsBeforeRevoke()
        if self._chosen.pattern is not None:
            self._consumer.subscribe(pattern=self._chosen.pattern, listener=listener)
        else:
            self._consumer.subscribe(self._chosen.topics, listener=listener)
        reader = listener.reader = self._reader(output, await self._limits.ends(self._consumer, partitions))
        await reader.read()

    async def _partitions(self) -> list[TopicPartition]:
        """The partitions to read, in order. Raises UnknownTopicOrPartition: one of them does not exist."""
        topics = self._chosen.topics if self._chosen.pattern is None else await self._all_matching(self._chosen.pattern)
        return sorted(await self._found(topics))

    async def _found(self, topics: Sequence[str]) -> list[TopicPartition]:
        wanted = self._chosen.partitions
        found: list[TopicPartition] = []
        for topic in dict.fromkeys(topics):
            numbers = await self._consumer.partitions_for_topic(topic)
            if not numbers:
                with suppress(UnknownTopicOrPartition):
                    async with self._connection.admin() as admin:
                        await admin.describe_topics([topic])  # another reason, such as a missing right, is raised
            missing = sorted(wanted - numbers)
            if not numbers or missing:
                what = f"there is no partition {missing[0]}" if numbers else "there is no such topic"
                raise UnknownTopicOrPartition(what, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=topic)
            found += [TopicPartition(topic, number) for number in numbers if not wanted or number in wanted]
        return found

    async def _all_matching(self, pattern: str) -> list[str]:
        async with self._connection.admin() as admin:
            found = await _matching(admin, pattern)
        if not found and self._chosen.group is None:
            raise KafkaError(f"no topic matches {pattern!r}")
        return found


async def _matching(admin: Admin, pattern: str) -> list[str]:
    """The topics whose whole name matches, sorted."""
    matches = re.compile(pattern).fullmatch
    return sorted(topic for topic in await admin.list_topics() if matches(topic))


@dataclass(frozen=True)
class Range:
    """Where to begin and to end, in each partition.

    Attributes:
        begin: "earliest", "latest", an offset, or (negative) a number of offsets before the end.
        since: begin at the first record at or after this time in ms, instead of at `begin`.
        until: end before the first record at or after this time in ms.
        at_end: end at the end of now.
    """

    begin: Edge | int = "latest"
    since: int | None = None
    until: int | None = None
    at_end: bool = False

    @property
    def only_new(self) -> bool:
        """Whether it begins at records that are not written yet."""
        return self.begin == "latest" and self.since is None

    async def starts(
        self, consumer: Consumer[Any, Any], partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """The first offset of each partition to read."""
        if self.since is not None:
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, self.since))
            ends = await consumer.end_offsets(partitions)
            return {tp: ends[tp] if (at := found[tp]) is None else at.offset for tp in partitions}
        if self.begin == "latest":
            return await consumer.end_offsets(partitions)
        earliest = await consumer.beginning_offsets(partitions)
        if self.begin == "earliest":
            return earliest
        ends = await consumer.end_offsets(partitions)
        wanted = {tp: self.begin if self.begin >= 0 else ends[tp] + self.begin for tp in partitions}
        return {tp: min(max(wanted[tp], earliest[tp]), ends[tp]) for tp in partitions}

    async def ends(
        self, consumer: Consumer[Any, Any], partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int] | None:
        """The offset after the last one of each partition to read; None without an end."""
        if self.until is None and not self.at_end:
            return None
        ends = await consumer.end_offsets(partitions)
        if self.until is None:
            return ends
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, self.until))
        return {tp: ends[tp] if (at := found[tp]) is None else min(at.offset, ends[tp]) for tp in partitions}


def parse_range(
    *, offset: str | None, since: str | None, until: str | None, from_beginning: bool, exit_at_end: bool
) -> Range:
    """The range that the options say. Raises WrongCall: an option cannot be used, or two exclude each other."""
    given = [
        name
        for name, used in (("--from-beginning", from_beginning), ("--offset", offset), ("--since", since))
        if used not in (None, False)
    ]
    if len(given) > 1:
        raise WrongCall(f"{' and '.join(given)} exclude each other")
    now = time.time_ns() // 1_000_000
    since_ms = None if since is None else time_argument(since, "--since", now)
    until_ms = None if until is None else time_argument(until, "--until", now)
    if until_ms is not None and until_ms > now:
        raise WrongCall(f"--until {until}: that time has not come yet")
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise WrongCall("--until is before --since")
    begin = "earliest" if from_beginning or (until is not None and offset is None) else "latest"
    return Range(_begin(offset) if offset is not None else begin, since_ms, until_ms, exit_at_end)  # type: ignore[arg-type]  # begin is an Edge


def _begin(text: str) -> Edge | int:
    if text in ("earliest", "beginning"):
        return "earliest"
    if text in ("latest", "end"):
        return "latest"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19 and int(digits) < 1 << 63):
        raise WrongCall(f"--offset {text!r} is none of a number, -N before the end, earliest, latest")
    return int(text)
