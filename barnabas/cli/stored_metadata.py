"""The metadata image of a data directory: its newest valid snapshot, and the metadata log above it, without a broker.

The log may hold records that are not committed; a lone node has none of them. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from barnabas.broker.image.image import EMPTY_IMAGE, MetadataImage
from barnabas.broker.image.records import decode_record
from barnabas.broker.image.replay import ImageBuilder
from barnabas.broker.quorum.core.snapshots import decode_snapshot, snapshot_name
from barnabas.cli.data_directory import DataDirectory
from barnabas.cli.stored_log import DamageFound, batches_of
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL
from barnabas.protocol.records import decode_records


def stored_image(directory: DataDirectory) -> MetadataImage | None:
    """Returns the image as of the last readable record; None if the directory has no metadata log.

    Raises:
        InvariantViolated: records contradict each other.
        RemoteProtocolError: a record is of an unknown form.
        OSError: a file cannot be read.
    """
    folder = directory.metadata
    if folder is None:
        return None
    builder = ImageBuilder(EMPTY_IMAGE)
    next_offset = 0
    for snapshot in reversed(directory.snapshots):
        try:
            values = list(decode_snapshot((folder.path / snapshot_name(snapshot)).read_bytes()))
        except RemoteProtocolError:
            continue  # an older one, or the log from its begin
        for value in values:
            builder.replay(decode_record(value))
        builder.advance(snapshot.end_offset - 1, snapshot.epoch, 0)
        next_offset = snapshot.end_offset
        break
    for segment in folder.logs:
        for found in batches_of(folder.path / f"{segment.base_offset:020d}.log"):
            if isinstance(found, DamageFound):
                return builder.image()
            batch, data = found
            if batch.last_offset < next_offset:
                continue
            if not batch.attributes & ATTRIBUTE_CONTROL:
                for record in decode_records(data):
                    if record.value is not None and record.offset >= next_offset:
                        builder.replay(decode_record(record.value))
            builder.advance(batch.last_offset, batch.leader_epoch, batch.max_timestamp)
    return builder.image()


def damaged_snapshots(directory: DataDirectory) -> Iterator[tuple[Path, str]]:
    """The snapshots that cannot be read, and why."""
    if directory.metadata is None:
        return
    for snapshot in directory.snapshots:
        path = directory.metadata.path / snapshot_name(snapshot)
        try:
            for _ in decode_snapshot(path.read_bytes()):
                pass
        except (RemoteProtocolError, OSError) as error:
            yield path, str(error)
