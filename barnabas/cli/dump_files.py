"""The files of a partition or data directory except logs: indexes, producer snapshots, saved states and small text files, as entries.

An entry is a line of text and the same as a document of `--json`, with "kind" and the fields of the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.errors import RemoteProtocolError

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


def _transaction_index(data: bytes, path: Path) -> Iterator[Shown]:
    yield from _aborted(data, _base_offset(path))


def _aborted(data: bytes, base_offset: int) -> Iterator[Shown]:
    from barnabas.storage.aborted import decode_aborted

    entries = decode_aborted(data, base_offset)
    if entries is None:
        raise RemoteProtocolError("entries do not ascend: the index is rebuilt at the next start")
    for entry in entries:
        yield Shown(
            f"aborted producer {entry.producer_id} first {entry.first_offset} last {entry.last_offset} "
            f"last stable offset {entry.last_stable_offset}",
            {
                "kind": "aborted_transaction",
                "producer_id": entry.producer_id,
                "first_offset": entry.first_offset,
                "last_offset": entry.last_offset,
                "last_stable_offset": entry.last_stable_offset,
            },
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
