"""`barnabas dump PATH…`: prints files of a partition, partition folders or whole data directories in readable form.

Reads the files of stopped and running brokers and of Apache Kafka: it locks, repairs and writes nothing. Records of
`__transaction_state`, `__consumer_offsets`, `__cluster_metadata` and of metadata snapshots are shown with their fields; the folder's
name selects the schema. A truncated or corrupt file is shown up to the damage, and the exit code is 1. A log of any size is read batch
by batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.record_json import header_pairs, readable
from barnabas.cli.render import Json, as_json
from barnabas.cli.session import Ended, local_command
from barnabas.cli.stored_log import DamageFound, batches_of
from barnabas.cli.streams import printable
from barnabas.errors import BarnabasError, RemoteProtocolError
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.record_codec import Record
from barnabas.protocol.records import BatchHeader, decode_records, read_control, read_header
from barnabas.protocol.schema import Struct, decode, decode_versioned
from barnabas.storage.checkpoints import encode_uuid

if TYPE_CHECKING:
    from barnabas.storage.producers import PartitionProducers

NEVER_MS = 1 << 62
FILE_BYTES_MAX: Final = 256 * 1024 * 1024  # of a file that is read whole: index files have 10 MiB by default


class Shown(NamedTuple):
    """One line of a dump, as text and as a document."""

    text: str
    document: dict[str, Any]


def text_of(path: Path) -> bytes:
    """Reads a file that is no log. Raises OSError, and RemoteProtocolError for one that is too large."""
    size = path.stat().st_size
    if size > FILE_BYTES_MAX:
        raise RemoteProtocolError(f"{path.name} has {size} bytes; a file of this kind has at most {FILE_BYTES_MAX}")
    return path.read_bytes()


def _base_offset(path: Path) -> int:
    digits = path.name[:20]
    if not digits.isdigit():
        raise RemoteProtocolError(f"{path.name} does not begin with the 20 digits of an offset")
    return int(digits)


def _offset_index(data: bytes, path: Path) -> Iterator[Shown]:
    from barnabas.storage.index import OffsetIndex

    log = path.with_suffix(".log")
    index = OffsetIndex.from_bytes(_base_offset(path), data, log.stat().st_size if log.exists() else NEVER_MS)
    if index is None:
        raise RemoteProtocolError("offsets or positions do not ascend: the index is rebuilt at the next start")
    for offset, position in index.entries():
        document = {"kind": "offset_index_entry", "offset": offset, "position": position}
        yield Shown(f"offset {offset} position {position}", document)


def _time_index(data: bytes, path: Path) -> Iterator[Shown]:
    from barnabas.storage.index import TimeIndex

    index = TimeIndex.from_bytes(_base_offset(path), data)
    if index is None:
        raise RemoteProtocolError("timestamps or offsets do not ascend: the index is rebuilt at the next start")
    for timestamp, offset in index.entries():
        document = {"kind": "time_index_entry", "timestamp": timestamp, "offset": offset}
        yield Shown(f"time {timestamp} offset {offset}", document)


def _aborted(data: bytes, base_offset: int) -> Iterator[Shown]:
    from barnabas.storage.aborted import decode_aborted

    entries = decode_aborted(data, base_offset)
    if entries is None:
        raise RemoteProtocolError("entries do not ascend: the index is rebuilt at the next start")
    for entry in entries:
        yield Shown(
            f"aborted producer {entry.producer_id} first {entry.first_offset} last {entry.last_offset} "
            f"last stable offset {entry.last_stable_offset}",
            {"kind": "aborted_transaction", **entry._asdict()},
        )


def _producer_snapshot(data: bytes, path: Path) -> Iterator[Shown]:
    from barnabas.storage.producers import PartitionProducers

    state = PartitionProducers()
    state.load_snapshot(data, _base_offset(path), 0, NEVER_MS)
    yield from _producers(state)


def _producers(state: PartitionProducers) -> Iterator[Shown]:
    for producer_id, entry in state.entries.items():
        first = None if entry.transaction_first_offset < 0 else entry.transaction_first_offset
        transaction = "no transaction" if first is None else f"open transaction from {first}"
        yield Shown(
            f"producer {producer_id} epoch {entry.epoch} last sequence {entry.last_sequence} last offset {entry.last_offset} "
            f"time {entry.last_timestamp} coordinator epoch {entry.coordinator_epoch} {transaction}",
            {
                "kind": "producer",
                "producer_id": producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_offset": entry.last_offset,
                "last_timestamp": entry.last_timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "transaction_first_offset": first,
            },
        )


def _saved_state(data: bytes, path: Path) -> Iterator[Shown]:
    from barnabas.storage.producers import PartitionProducers
    from barnabas.storage.saved_state import SavedState

    if not data:
        yield _said("empty: the log was cut, or the disk failed, since a state was saved")
        return
    state = SavedState.from_bytes(data)
    if state is None:
        raise RemoteProtocolError("the state is torn or damaged: the next start reads more of the log instead")
    yield _said(
        f"end offset {state.end_offset} at byte {state.size} of segment {state.base_offset}, last batch at byte "
        f"{state.last_position}"
    )
    offset_entries, offset_checksum, time_entries, time_checksum = state.indexes
    yield _said(
        f"offset index of {offset_entries} entries, checksum {offset_checksum:08x}; "
        f"time index of {time_entries} entries, checksum {time_checksum:08x}"
    )
    for epoch, start_offset in state.epochs:
        yield _said(f"epoch {epoch} from offset {start_offset}")
    yield from _aborted(state.aborted, state.base_offset)
    yield _said(f"producers: {'all that ever wrote' if state.complete else 'some may be forgotten'}")
    producers = PartitionProducers()
    producers.load_snapshot(state.producers, state.end_offset, 0, NEVER_MS)
    yield from _producers(producers)


def _as_text(data: bytes, path: Path) -> Iterator[Shown]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"{path.name} is not text") from None
    for line in lines:
        yield _said(line)


def _said(text: str) -> Shown:
    return Shown(text, {"kind": "text", "text": text})


READERS: Final[dict[str, Callable[[bytes, Path], Iterator[Shown]]]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": lambda data, path: _aborted(data, _base_offset(path)),
    ".snapshot": _producer_snapshot,
    "-state-checkpoint": _saved_state,
    "-checkpoint": _as_text,
    ".metadata": _as_text,
    ".properties": _as_text,
    "quorum-state": _as_text,
    "lost-records": _as_text,
    "lost-producers": _as_text,
    "damaged-after-clean-stop": _as_text,
    ".kafka_cleanshutdown": _as_text,
}


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BROKER = 4  # resource type of a node's settings
HIDDEN = "[hidden]"  # in place of passwords, and of keys of SCRAM users
TEXT_BYTES_MAX = 120  # bytes shown of a key or value; the rest is only counted
CONTROL_NAMES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
}


class DumpedOffsets(NamedTuple):
    """Offsets to show, both ends included; `last` None: to the end."""

    first: int
    last: int | None


def log_entries(path: Path, wanted: DumpedOffsets, *, records: bool) -> Iterator[Shown]:
    """Yields the batches of a file that have a wanted offset, and their wanted records.

    Raises:
        RemoteProtocolError: the file is damaged; what is before the damage was yielded.
        OSError: the file cannot be read.
    """
    topic = path.absolute().parent.name.rpartition("-")[0]
    explain = _EXPLAIN.get(CLUSTER_METADATA_TOPIC if path.name.endswith(".checkpoint") else topic, _plain)
    for found in batches_of(path):
        if isinstance(found, DamageFound):
            raise RemoteProtocolError(found.why)
        batch, data = found
        if batch.last_offset < wanted.first:
            continue
        if wanted.last is not None and batch.base_offset > wanted.last:
            return
        header = read_header(data)
        yield _batch(batch.position, header)
        if records:
            for record in decode_records(data, 0, header):
                if record.offset >= wanted.first and (wanted.last is None or record.offset <= wanted.last):
                    yield _record(record, explain, is_control=header.is_control)


def _batch(position: int, header: BatchHeader) -> Shown:
    codec = CODECS[header.compression] if header.compression < len(CODECS) else str(header.compression)
    marks = "".join(
        f" {word}"
        for word, on in (
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            ("delete-horizon", header.has_delete_horizon),  # the first of the times
        )
        if on
    )
    text = (
        f"batch {header.base_offset}..{header.last_offset} at {position} size {header.size_bytes} count {header.record_count} "
        f"epoch {header.leader_epoch} producer {header.producer_id}/{header.producer_epoch} "
        f"sequence {header.base_sequence} time {header.base_timestamp}..{header.max_timestamp} {codec}{marks}"
    )
    document = {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": position,
        "size_bytes": header.size_bytes,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "compression": codec,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
    }
    return Shown(text, document)


def _record(record: Record, explain: Callable[[Record], Explained], *, is_control: bool) -> Shown:
    text, message = _control(record) if is_control else explain(record)
    document: dict[str, Any] = {"kind": "control" if is_control else "record", "offset": record.offset}
    if is_control:
        document.update(message or {})
    else:
        document["timestamp"] = record.timestamp
        document |= message or {
            "key": readable(record.key),
            "value": readable(record.value),
            "headers": header_pairs(record.headers),
        }
    return Shown(f"  {record.offset}: {text}", document)


Explained = tuple[str, dict[str, Any] | None]  # a record's content as text, and decoded where its topic is known


def _control(record: Record) -> Explained:
    control = read_control(record)
    name = CONTROL_NAMES.get(control.type, f"control {control.type}")
    if control.type > 1:
        return name, {"type": name}
    document = {"type": name, "coordinator_epoch": control.coordinator_epoch}
    return f"{name} coordinator epoch {control.coordinator_epoch}", document


def _text(data: bytes | None) -> str:
    if data is None:
        return "null"
    shown = data[:TEXT_BYTES_MAX]
    try:
        text = repr(shown.decode())
    except UnicodeDecodeError:
        text = "0x" + shown.hex()
    return text if len(data) <= TEXT_BYTES_MAX else f"{text}… ({len(data)} bytes)"


def _plain(record: Record) -> Explained:
    headers = "".join(f" {name}={_text(value)}" for name, value in record.headers)
    return f"time {record.timestamp} key {_text(record.key)} value {_text(record.value)}{headers}", None


def _document(value: Any, name: str = "") -> Any:
    """The fields of a message, with its type; 16 bytes in a field of ids have Kafka's form."""
    if isinstance(value, Struct):
        fields = {each.name: _document(getattr(value, each.name), each.name) for each in value.FIELDS}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, list):
        return [_document(each, name) for each in value]
    if isinstance(value, bytes):
        return encode_uuid(value) if len(value) == 16 and name.endswith(("_id", "directories")) else readable(value)
    return value


def _fields(message: Any) -> str:
    shown = ", ".join(f"{name}={_short(getattr(message, name))}" for name in message.__slots__)
    return f"{type(message).__name__}({shown})"


def _short(value: Any) -> str:
    if isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    if isinstance(value, bytes):
        return _text(value)
    return repr(value)


def _transaction(record: Record) -> Explained:
    from barnabas.protocol.messages.internal import TransactionLogKey, TransactionLogValue

    if record.key is None:
        return _plain(record)
    key = decode_versioned(TransactionLogKey, record.key)
    if record.value is None:
        return f"{key.transactional_id!r} tombstone", {"key": _document(key), "value": None}
    value = decode_versioned(TransactionLogValue, record.value)
    return f"{key.transactional_id!r} {_fields(value)}", {"key": _document(key), "value": _document(value)}


def _offset(record: Record) -> Explained:
    from barnabas.protocol.messages.internal import (
        GroupMetadataKey,
        GroupMetadataValue,
        OffsetCommitKey,
        OffsetCommitValue,
    )

    if record.key is None or len(record.key) < 2:
        return _plain(record)
    kinds: dict[int, tuple[type[Struct], type[Struct]]] = {
        0: (OffsetCommitKey, OffsetCommitValue),
        1: (OffsetCommitKey, OffsetCommitValue),
        2: (GroupMetadataKey, GroupMetadataValue),
    }
    kind = kinds.get(int.from_bytes(record.key[:2], "big"))
    if kind is None:
        return _plain(record)
    key = decode(kind[0], record.key, 0, 2)
    value = None if record.value is None else decode_versioned(kind[1], record.value)
    shown = "tombstone" if value is None else _fields(value)
    return f"{_fields(key)} {shown}", {"key": _document(key), "value": _document(value)}


def _metadata(record: Record) -> Explained:
    from barnabas.broker.config.table import server_key
    from barnabas.broker.image.records import ConfigRecord, UserScramCredentialRecord, decode_record

    if record.value is None:
        return _plain(record)
    message = decode_record(record.value)
    if isinstance(message, UserScramCredentialRecord):
        message.salt = message.stored_key = message.server_key = HIDDEN.encode()
    elif isinstance(message, ConfigRecord) and message.resource_type == BROKER and message.value is not None:
        key = server_key(message.name)
        if key is None or key.sensitive:  # as DescribeConfigs
            message.value = HIDDEN
    return _short(message), {"key": None, "value": _document(message)}


_EXPLAIN: dict[str, Callable[[Record], Explained]] = {
    TRANSACTION_STATE_TOPIC: _transaction,
    GROUP_METADATA_TOPIC: _offset,
    CLUSTER_METADATA_TOPIC: _metadata,
}


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
