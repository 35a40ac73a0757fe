"""`barnabas dump FILE…`: prints any file of a partition or of a data directory in readable form.

Reads the files of stopped and running brokers and of Apache Kafka: it locks, repairs and writes nothing. Records of
`__transaction_state`, `__consumer_offsets` and `__cluster_metadata` are shown with their fields; the folder's name
selects the schema. A truncated or corrupt file is shown up to the damage, and the exit code is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from barnabas.errors import BarnabasError, RemoteProtocolError
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.records import Record, crc_ok, decode_records, iter_batches, read_control
from barnabas.protocol.schema import Struct, decode, decode_versioned

if TYPE_CHECKING:
    from barnabas.storage.producers import PartitionProducers

__all__ = ["dump"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TEXT_BYTES_MAX = 120  # bytes shown of a key or value; the rest is only counted
CONTROL_NAMES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
}
NEVER_MS = 1 << 62


def dump(
    *files: Annotated[
        Path, Parameter(help="A .log, .index, .timeindex, .txnindex, .snapshot, checkpoint or properties file.")
    ],
    records: Annotated[bool, Parameter(help="Show the records of each batch.")] = True,
) -> int:
    """Print any file of a partition in readable form."""
    if not files:
        print("dump: name at least one file, e.g. barnabas dump data/orders-0/*.log", file=sys.stderr)
        return 2
    failed = False
    for path in files:
        print(f"{path}:")
        try:
            for line in lines_of(path, records=records):
                print(f"  {line}")
        except BrokenPipeError:
            raise
        except (BarnabasError, OSError) as error:
            print(f"  ! {error}")
            failed = True
    return 1 if failed else 0


def lines_of(path: Path, *, records: bool) -> Iterator[str]:
    """Yields the lines to show for one file.

    Raises:
        BarnabasError: the file is corrupt or of an unknown kind.
        OSError: the file cannot be read.
    """
    name = path.name.removesuffix(".deleted")
    data = path.read_bytes()
    suffix = next((s for s in _READERS if name.endswith(s)), None)
    if name.endswith((".log", ".checkpoint")):
        yield from _log(data, path.absolute().parent.name, records=records)
    elif suffix is not None:
        yield from _READERS[suffix](data, path)
    else:
        raise RemoteProtocolError(f"{path.name} is not a file of a partition or data directory")


def _log(data: bytes, folder: str, *, records: bool) -> Iterator[str]:
    topic = folder.rpartition("-")[0]
    explain = _EXPLAIN.get(topic, _plain)
    end = 0
    for at, header in iter_batches(data):
        end = at + header.size_bytes
        marks = "".join(
            f" {word}"
            for word, on in (
                ("transactional", header.is_transactional),
                ("control", header.is_control),
                ("delete-horizon", header.has_delete_horizon),  # the first of the times
            )
            if on
        )
        valid = crc_ok(data, at, header)
        yield (
            f"batch {header.base_offset}..{header.last_offset} at {at} size {header.size_bytes} count {header.record_count} "
            f"epoch {header.leader_epoch} producer {header.producer_id}/{header.producer_epoch} "
            f"sequence {header.base_sequence} time {header.base_timestamp}..{header.max_timestamp} "
            f"{CODECS[header.compression] if header.compression < len(CODECS) else header.compression}{marks}"
            f"{'' if valid else ' CRC WRONG'}"
        )
        if not valid:
            raise RemoteProtocolError(f"the batch at byte {at} does not match its checksum")
        if records:
            for record in decode_records(data, at, header):
                yield f"  {record.offset}: {_control(record) if header.is_control else explain(record)}"
    if end < len(data) and any(data[end:]):
        raise RemoteProtocolError(f"{len(data) - end} bytes from byte {end} are not a whole batch")


def _control(record: Record) -> str:
    control = read_control(record)
    name = CONTROL_NAMES.get(control.type, f"control {control.type}")
    return f"{name} coordinator epoch {control.coordinator_epoch}" if control.type <= 1 else name


def _text(data: bytes | None) -> str:
    if data is None:
        return "null"
    shown = data[:TEXT_BYTES_MAX]
    try:
        text = repr(shown.decode())
    except UnicodeDecodeError:
        text = "0x" + shown.hex()
    return text if len(data) <= TEXT_BYTES_MAX else f"{text}… ({len(data)} bytes)"


def _plain(record: Record) -> str:
    headers = "".join(f" {name}={_text(value)}" for name, value in record.headers)
    return f"time {record.timestamp} key {_text(record.key)} value {_text(record.value)}{headers}"


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


def _transaction(record: Record) -> str:
    from barnabas.protocol.messages.internal import TransactionLogKey, TransactionLogValue

    if record.key is None:
        return _plain(record)
    key = decode_versioned(TransactionLogKey, record.key)
    if record.value is None:
        return f"{key.transactional_id!r} tombstone"
    return f"{key.transactional_id!r} {_fields(decode_versioned(TransactionLogValue, record.value))}"


def _offset(record: Record) -> str:
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
    value = "tombstone" if record.value is None else _fields(decode_versioned(kind[1], record.value))
    return f"{_fields(key)} {value}"


def _metadata(record: Record) -> str:
    from barnabas.broker.metadata.records import decode_record

    if record.value is None:
        return _plain(record)
    return _short(decode_record(record.value))


_EXPLAIN: dict[str, Callable[[Record], str]] = {
    TRANSACTION_STATE_TOPIC: _transaction,
    GROUP_METADATA_TOPIC: _offset,
    CLUSTER_METADATA_TOPIC: _metadata,
}


def _base_offset(path: Path) -> int:
    digits = path.name[:20]
    if not digits.isdigit():
        raise RemoteProtocolError(f"{path.name} does not begin with the 20 digits of an offset")
    return int(digits)


def _offset_index(data: bytes, path: Path) -> Iterator[str]:
    from barnabas.storage.index import OffsetIndex

    log = path.with_suffix(".log")
    index = OffsetIndex.from_bytes(_base_offset(path), data, log.stat().st_size if log.exists() else NEVER_MS)
    if index is None:
        raise RemoteProtocolError("offsets or positions do not ascend: the index is rebuilt at the next start")
    for offset, position in index.entries():
        yield f"offset {offset} position {position}"


def _time_index(data: bytes, path: Path) -> Iterator[str]:
    from barnabas.storage.index import TimeIndex

    index = TimeIndex.from_bytes(_base_offset(path), data)
    if index is None:
        raise RemoteProtocolError("timestamps or offsets do not ascend: the index is rebuilt at the next start")
    for timestamp, offset in index.entries():
        yield f"time {timestamp} offset {offset}"


def _transaction_index(data: bytes, path: Path) -> Iterator[str]:
    yield from _aborted(data, _base_offset(path))


def _aborted(data: bytes, base_offset: int) -> Iterator[str]:
    from barnabas.storage.aborted import decode_aborted

    entries = decode_aborted(data, base_offset)
    if entries is None:
        raise RemoteProtocolError("entries do not ascend: the index is rebuilt at the next start")
    for entry in entries:
        yield (
            f"aborted producer {entry.producer_id} first {entry.first_offset} last {entry.last_offset} "
            f"last stable offset {entry.last_stable_offset}"
        )


def _producer_snapshot(data: bytes, path: Path) -> Iterator[str]:
    from barnabas.storage.producers import PartitionProducers

    state = PartitionProducers()
    state.load_snapshot(data, _base_offset(path), 0, NEVER_MS)
    yield from _producers(state)


def _producers(state: PartitionProducers) -> Iterator[str]:
    for producer_id, entry in state.entries.items():
        open_at = (
            f"open transaction from {entry.transaction_first_offset}"
            if entry.transaction_first_offset >= 0
            else "no transaction"
        )
        yield (
            f"producer {producer_id} epoch {entry.epoch} last sequence {entry.last_sequence} last offset {entry.last_offset} "
            f"time {entry.last_timestamp} coordinator epoch {entry.coordinator_epoch} {open_at}"
        )


def _saved_state(data: bytes, path: Path) -> Iterator[str]:
    from barnabas.storage.producers import PartitionProducers
    from barnabas.storage.saved_state import SavedState

    if not data:
        yield "empty: the log was cut, or the disk failed, since a state was saved"
        return
    state = SavedState.from_bytes(data)
    if state is None:
        raise RemoteProtocolError("the state is torn or damaged: the next start reads more of the log instead")
    yield (
        f"end offset {state.end_offset} at byte {state.size} of segment {state.base_offset}, last batch at byte "
        f"{state.last_position}, counts {'always' if state.synced else f'on boot {state.boot_id}'}"
    )
    offset_entries, offset_checksum, time_entries, time_checksum = state.indexes
    yield (
        f"offset index of {offset_entries} entries, checksum {offset_checksum:08x}; "
        f"time index of {time_entries} entries, checksum {time_checksum:08x}"
    )
    for epoch, start_offset in state.epochs:
        yield f"epoch {epoch} from offset {start_offset}"
    yield from _aborted(state.aborted, state.base_offset)
    yield f"producers: {'all that ever wrote' if state.complete else 'some may be forgotten'}"
    producers = PartitionProducers()
    producers.load_snapshot(state.producers, state.end_offset, 0, NEVER_MS)
    yield from _producers(producers)


def _as_text(data: bytes, path: Path) -> Iterator[str]:
    try:
        yield from data.decode().splitlines()
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"{path.name} is not text") from None


_READERS: dict[str, Callable[[bytes, Path], Iterator[str]]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _transaction_index,
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
