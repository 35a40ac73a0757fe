"""Files of one partition's folder: writes small files, tracks unsynced and deleted ones."""

from __future__ import annotations

from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import SECTOR_SIZE, Disk, File
from barnabas.storage.aborted import encode_aborted
from barnabas.storage.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    NEW_SUFFIX,
    PARTITION_METADATA,
    format_epochs,
    format_partition_metadata,
)
from barnabas.storage.epochs import EpochCache
from barnabas.storage.log_config import INT64_MAX
from barnabas.storage.producer_rebuild import SNAPSHOT_SUFFIX
from barnabas.storage.recovery import DELETED_SUFFIX, INDEX_SUFFIXES
from barnabas.storage.segment import Segment, file_name


class LogFiles:
    """Unsynced and deleted files of a folder, without the active .log (see the recovery point).

    `stored_epochs` are the entries of the leader-epoch-checkpoint file; none if unknown.
    """

    __slots__ = ("_changes", "_deleted", "_disk", "_marks", "_metadata", "_unsynced", "directory", "stored_epochs")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory
        self._metadata = f"{directory}/{PARTITION_METADATA}"
        self._unsynced: dict[str, int] = {}  # path -> number of its last change
        self.stored_epochs: list[tuple[int, int]] = []
        self._changes = 0
        self._marks: list[tuple[int, int, list[File]]] = []  # (log end offset, number of changes, files) of each `mark`
        self._deleted: list[tuple[int, str]] = []  # (deadline in ms, path), in the order of deadlines

    def claim(self, found: bytes | None, topic_id: bytes | None) -> bytes:
        """Returns the id of the topic that owns the folder: `found` there, else (None) `topic_id` from now on.

        Raises:
            BrokerError: INCONSISTENT_TOPIC_ID: the folder belongs to another topic.
        """
        if topic_id is None:
            return found or bytes(16)
        if found is not None and found != topic_id:
            raise BrokerError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{self.directory} belongs to topic {found.hex()}, not to {topic_id.hex()}",
            )
        if found is None or not self._disk.exists(self._metadata):
            self._write(self._metadata + NEW_SUFFIX, format_partition_metadata(topic_id))
        return topic_id

    @property
    def unnamed(self) -> bool:
        """As of PartitionLog."""
        return self._metadata + NEW_SUFFIX in self._unsynced or self._metadata in self._unsynced

    def store_topic_id(self, topic_id: bytes) -> None:
        """Makes partition.metadata durable at once."""
        if self.unnamed:
            self._disk.replace(self._metadata, format_partition_metadata(topic_id))
            self._unsynced.pop(self._metadata, None)
            self.remove(PARTITION_METADATA + NEW_SUFFIX)

    def store(self, name: str, data: bytes) -> None:
        """The next sync makes the file durable."""
        self._write(f"{self.directory}/{name}", data)

    def store_epochs(self, epochs: EpochCache, log_end_offset: int, *, closing: bool = False) -> None:
        """Writes the epochs that have records: a load ignores the others. `closing`: a sync follows at once."""
        if not epochs.dirty:
            return
        written = [entry for entry in epochs.entries if entry[1] < log_end_offset]
        if written != self.stored_epochs:
            data = format_epochs(written)
            # One sector is written whole. A rename costs milliseconds: file systems sync the new contents first.
            if closing and len(data) <= SECTOR_SIZE:
                self.store(LEADER_EPOCH_CHECKPOINT, data)
            else:
                self._replace(LEADER_EPOCH_CHECKPOINT, data)
            self.stored_epochs = written
        epochs.dirty = len(written) < len(epochs.entries)

    def _replace(self, name: str, data: bytes) -> None:
        """For a file whose old and new contents must not mix. A crash may leave it truncated or old."""
        path = f"{self.directory}/{name}"
        aside = path + ".tmp"
        self._write(aside, data)
        del self._unsynced[aside]
        self._disk.rename(aside, path)
        self._note(path)

    def store_segment(self, segment: Segment) -> None:
        self.store_indexes(segment, complete=True)
        self.store_aborted(segment)
        self._note(segment.log_path)

    def store_indexes(self, segment: Segment, *, complete: bool) -> None:
        """Writes the entries that .index and .timeindex lack; `complete` as in Segment.index_changes."""
        try:
            for path, position, data in segment.index_changes(complete=complete):
                self._write(path, data, position)
        except OSError:
            segment.forget_stored()
            raise

    def store_aborted(self, segment: Segment) -> None:
        name = file_name(segment.base_offset, ".txnindex")
        if segment.aborted:
            self.store(name, encode_aborted(segment.aborted))
        else:
            self._disk.remove(f"{self.directory}/{name}")

    def _write(self, path: str, data: bytes, position: int = 0) -> None:
        file = self._disk.open(path, create=True)
        file.pwrite(data, position)
        if file.size() > position + len(data):
            file.truncate(position + len(data))
        file.close()
        self._note(path)

    def changed_segment(self, segment: Segment) -> None:
        """Marks all files of a segment as unsynced, which an earlier process wrote."""
        base = segment.base_offset
        # The .log first, as in Kafka: without its .txnindex a segment would show aborted records.
        for suffix in (".log", *INDEX_SUFFIXES, SNAPSHOT_SUFFIX):
            self._note(f"{self.directory}/{file_name(base, suffix)}")
        self._note(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}")

    def changed(self, *paths: str) -> None:
        for path in paths:
            self._note(path)

    def _note(self, path: str) -> None:
        self._changes += 1
        self._unsynced[path] = self._changes

    # -- syncs ----------------------------------------------------------------------------------------------------

    def mark(self, log_end_offset: int) -> list[File]:
        """Returns the unsynced files. The caller syncs them at once."""
        files: list[File] = []
        self._marks.append((log_end_offset, self._changes, files))
        for path in list(self._unsynced):
            try:
                files.append(self._disk.handle(path))
            except FileNotFoundError:
                del self._unsynced[path]  # it was removed: nothing to sync
        return list(files)

    def synced(self, up_to_offset: int) -> None:
        """Handles the end of the oldest sync, marked at `up_to_offset`. Closes its files."""
        changes = -1
        while self._marks and self._marks[0][0] <= up_to_offset:
            offset, changes, files = self._marks.pop(0)
            for file in files:
                file.close()
            if offset == up_to_offset:
                break
        if changes >= 0 and self._unsynced:
            new = self._metadata + NEW_SUFFIX
            renames = self._unsynced.get(new, INT64_MAX) <= changes
            if renames and self._disk.exists(
                new
            ):  # after the sync, as in Kafka, which stops at an empty partition.metadata
                self._disk.rename(new, self._metadata)
            self._unsynced = {path: number for path, number in self._unsynced.items() if number > changes}
            if renames and up_to_offset:
                self._note(self._metadata)  # the synced records need the name; the first sync of later ones covers it

    # -- removal --------------------------------------------------------------------------------------------------

    def delete_segment(self, segment: Segment, deadline_ms: int, *, with_snapshot: bool = True) -> None:
        """Renames a segment's files to `.deleted` (with its producer snapshot, unless another segment needs that)."""
        segment.close()
        base = segment.base_offset
        for suffix in (".log", *INDEX_SUFFIXES, *([SNAPSHOT_SUFFIX] if with_snapshot else [])):
            path = f"{self.directory}/{file_name(base, suffix)}"
            self._unsynced.pop(path, None)
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED_SUFFIX)
                self._deleted.append((deadline_ms, path + DELETED_SUFFIX))

    def remove(self, name: str) -> None:
        path = f"{self.directory}/{name}"
        self._unsynced.pop(path, None)
        self._disk.remove(path)

    def found_deleted(self, names: list[str]) -> None:
        self._deleted[:0] = [(0, f"{self.directory}/{name}") for name in names]

    def take_deleted(self, now_ms: int | None) -> list[str]:
        """Returns the `.deleted` files after their deadline, all if `now_ms` is None. The caller removes them."""
        due = [path for deadline, path in self._deleted if now_ms is None or deadline <= now_ms]
        if due:
            self._deleted = [entry for entry in self._deleted if now_ms is not None and entry[0] > now_ms]
        return due
