"""Batches and records of a log or metadata snapshot, as text and `--json` documents. Secrets of the metadata log are hidden: SCRAM keys and passwords."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.cli.dump_files import Shown
from barnabas.cli.record_json import header_pairs, readable
from barnabas.cli.stored_log import DamageFound, batches_of
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.record_codec import Record
from barnabas.protocol.records import BatchHeader, decode_records, read_control, read_header
from barnabas.protocol.schema import Struct, decode, decode_versioned
from barnabas.storage.checkpoints import encode_uuid

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
