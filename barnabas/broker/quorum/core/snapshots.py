"""Metadata snapshots (KIP-630): files `<end offset>-<epoch>.checkpoint` of record batches between a SnapshotHeader and a SnapshotFooter.
Their offsets count from 0 and have no meaning. A file without footer, or with a wrong checksum, is not a snapshot: readers use
the previous one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer, Disk
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.compression import decompress
from barnabas.protocol.messages.internal import SnapshotFooterRecord, SnapshotHeaderRecord
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import (
    CONTROL_SNAPSHOT_FOOTER,
    CONTROL_SNAPSHOT_HEADER,
    BatchHeader,
    build_batch,
    build_control_batch,
    crc_ok,
    decode_records,
    iter_batches,
    read_control,
)
from barnabas.protocol.schema import decode, encode
from barnabas.storage.steps import record_slices
from barnabas.work import Steps, Work, finished

BATCH_RECORDS: Final = 1024
CHECKED_BYTES_PER_UNIT: Final = 16 * 1024
BOOTSTRAP: Final = "bootstrap.checkpoint"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint\Z")


class SnapshotId(NamedTuple):
    """The part of the log that a snapshot represents."""

    end_offset: int  # exclusive
    epoch: int  # of the last record below end_offset


def snapshot_name(snapshot: SnapshotId) -> str:
    """File name in the metadata log's folder."""
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"


def list_snapshots(disk: Disk, directory: str) -> list[SnapshotId]:
    """Oldest first."""
    found = (_NAME.match(name) for name in disk.listdir(directory))
    return sorted(SnapshotId(int(match[1]), int(match[2])) for match in found if match)


def encode_snapshot(
    values: Iterable[bytes],
    *,
    epoch: int,
    last_timestamp_ms: int,
    now_ms: int,
    control: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """`control`: (type, value) of the control records after the header: kraft.version and voters."""
    data: bytearray = finished(
        encode_snapshot_in_slices(
            values, epoch=epoch, last_timestamp_ms=last_timestamp_ms, now_ms=now_ms, control=control
        )
    )
    return bytes(data)


def encode_snapshot_in_slices(
    values: Iterable[bytes],
    *,
    epoch: int,
    last_timestamp_ms: int,
    now_ms: int,
    control: Sequence[tuple[int, bytes]] = (),
) -> Work:
    """As `encode_snapshot`, with a yield after each batch."""
    header = encode(SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp_ms), 0)
    head = [(CONTROL_SNAPSHOT_HEADER, header), *control]
    out = bytearray(build_control_batch(head, timestamp=now_ms, leader_epoch=epoch))
    offset = len(head)
    chunk: list[NewRecord] = []
    for value in values:
        chunk.append(NewRecord(None, value, now_ms))
        yield 1
        if len(chunk) == BATCH_RECORDS:
            out += build_batch(chunk, base_offset=offset, leader_epoch=epoch)
            offset += BATCH_RECORDS
            chunk = []
            yield BATCH_RECORDS // 4
    if chunk:
        out += build_batch(chunk, base_offset=offset, leader_epoch=epoch)
        offset += len(chunk)
    footer = encode(SnapshotFooterRecord(), 0)
    out += build_control_batch(
        [(CONTROL_SNAPSHOT_FOOTER, footer)], timestamp=now_ms, base_offset=offset, leader_epoch=epoch
    )
    return out


def decode_snapshot(data: Buffer, on_control: Callable[[int, bytes], None] | None = None) -> Iterator[bytes]:
    """The encoded metadata records of a snapshot, in order.

    `on_control` gets type and value of every control record. Raises RemoteProtocolError for a wrong checksum, a cut batch, or a missing
    header or footer.
    """
    for position, header in _data_batches(data, on_control):
        packed = memoryview(data)[position + HEADER_SIZE : position + header.size_bytes]
        for _, records in record_slices(decompress(header.compression, packed), header):
            for record in records:
                if record.value is not None:
                    yield record.value


def check_snapshot(data: Buffer, on_control: Callable[[int, bytes], None]) -> None:
    """Checks everything except the records' content: checksums, header and footer. Arguments and errors as `decode_snapshot`."""
    finished(check_snapshot_in_slices(data, on_control))


def check_snapshot_in_slices(data: Buffer, on_control: Callable[[int, bytes], None]) -> Steps[None]:
    """As `check_snapshot`, with a yield after each batch of metadata records."""
    for _, header in _data_batches(data, on_control):
        yield 1 + header.size_bytes // CHECKED_BYTES_PER_UNIT


def _data_batches(data: Buffer, on_control: Callable[[int, bytes], None] | None) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch of metadata records; passes the control batches to `on_control`."""
    end = 0
    ended = False
    for position, header in iter_batches(data):
        if not crc_ok(data, position, header):
            raise RemoteProtocolError(f"snapshot: checksum of the batch at byte {position} is wrong")
        if header.is_control:
            records = decode_records(data, position, header)
            kind = read_control(records[0]).type
            if (kind == CONTROL_SNAPSHOT_HEADER) != (position == 0):
                raise RemoteProtocolError("snapshot: does not begin with its header")
            ended = kind == CONTROL_SNAPSHOT_FOOTER
            if on_control is not None:
                for record in records:
                    on_control(read_control(record).type, record.value or b"")
        elif position == 0:
            raise RemoteProtocolError("snapshot: does not begin with its header")
        else:
            yield position, header
        end = position + header.size_bytes
    if not ended or end != len(data):
        raise RemoteProtocolError(f"snapshot: no footer at its end, {len(data) - end} bytes left over")


def snapshot_timestamp_ms(data: bytes) -> int:
    """Append time of the last record that a snapshot represents. Raises RemoteProtocolError if it has no header."""
    for position, header in iter_batches(data):
        (first, *_) = decode_records(data, position, header)
        if header.is_control and read_control(first).type == CONTROL_SNAPSHOT_HEADER:
            return decode(SnapshotHeaderRecord, first.value or b"", 0).last_contained_log_timestamp
        break
    raise RemoteProtocolError("snapshot: does not begin with its header")


def read_bootstrap(disk: Disk) -> list[bytes]:
    """Records of Kafka's storage tool from the formatting; empty without them. Raises RemoteProtocolError: bootstrap.checkpoint is damaged."""
    return list(decode_snapshot(disk.read(BOOTSTRAP))) if disk.exists(BOOTSTRAP) else []
