"""MetadataLoader: replays the committed metadata log into images and publishes them, on every node (KIP-630, KIP-868)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from barnabas.broker.controller.channel import ControllerChannel
from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.controller.core.features import check_features, check_no_tiers
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, difference
from barnabas.broker.image.records import MetadataRecord, decode_record, encode_record
from barnabas.broker.image.replay import ImageBuilder
from barnabas.broker.image.snapshot import snapshot_records
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.broker.quorum.quorum import Quorum
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices, WorkResult, advance
from barnabas.errors import InvariantViolated, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.compression import decompress
from barnabas.protocol.records import iter_batches
from barnabas.storage.steps import record_slices
from barnabas.work import Work, finished

UNITS_OF_A_RECORD: Final = 2  # of work: decoded and replayed


class MetadataLoader:
    """Replays the metadata log of one node; its images never hold records of an open metadata transaction."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        slices: Slices,
        quorum: Quorum,
        current: CurrentImage,
        controller: QuorumController | None,
        channel: ControllerChannel,
        heartbeat_now: Callable[[], None],
    ) -> None:
        """Reads no log. `controller` is None without that role; `heartbeat_now` sends this broker's heartbeat."""
        self._reactor = reactor
        self._slices = slices
        self._quorum = quorum
        self._current = current
        self._controller = controller
        self._channel = channel
        self._heartbeat_now = heartbeat_now
        self.image: MetadataImage = EMPTY_IMAGE  # the last published
        self.open_transaction: list[MetadataRecord] | None = None  # None without an open metadata transaction
        self._snapshot_asked = False

    @property
    def in_transaction(self) -> bool:
        return self.open_transaction is not None

    # --- from the quorum ------------------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: SnapshotId, values: Iterable[bytes]) -> None:
        self._begin(self._replay_snapshot(snapshot, values))

    def on_committed(self, batches: Buffer) -> None:
        """Replays whole committed batches and publishes one image."""
        self._begin(self._replay_batches(batches if isinstance(batches, bytes) else bytes(batches)))

    def _begin(self, work: Work) -> None:
        """Until all slices have run the quorum delivers nothing more. Raises InvariantViolated, UnsupportedFeatures."""
        rest = advance(work)
        if isinstance(rest, WorkResult):
            return
        if self._quorum.hold():
            self._slices.start(rest, lambda _: self._quorum.resume(), self._quorum.fail)
        else:
            finished(rest)

    def _replay_snapshot(self, snapshot: SnapshotId, values: Iterable[bytes]) -> Work:
        builder = ImageBuilder(EMPTY_IMAGE, of_snapshot=True)
        try:
            for value in values:
                builder.replay(decode_record(value))
                yield UNITS_OF_A_RECORD
        except RemoteProtocolError as error:
            raise InvariantViolated(f"metadata snapshot {snapshot} is damaged: {error}") from error
        builder.advance(snapshot.end_offset - 1, snapshot.epoch, self._reactor.clock.now_ms())
        image = yield from builder.image_in_slices()
        delta = yield from difference(self.image, image)
        yield from self._publish(image, delta, None)

    def _replay_batches(self, batches: bytes) -> Work:
        builder = ImageBuilder(self.image, self.open_transaction)
        try:
            for position, header in iter_batches(batches):
                if not header.is_control:
                    packed = memoryview(batches)[position + HEADER_SIZE : position + header.size_bytes]
                    for _, records in record_slices(decompress(header.compression, packed), header):
                        for record in records:
                            if record.value is not None:
                                builder.replay(decode_record(record.value))
                            yield UNITS_OF_A_RECORD
                builder.advance(header.last_offset, header.leader_epoch, header.max_timestamp)
        except RemoteProtocolError as error:
            raise InvariantViolated(f"the metadata log is damaged after offset {self.image.offset}: {error}") from error
        image = yield from builder.image_in_slices()
        yield from self._publish(image, builder.delta, builder.transaction)

    def on_leading(self, epoch: int) -> None:
        """This node leads the quorum, and everything committed before is published."""
        if self._controller is not None:
            self._controller.on_leading(epoch, self.open_transaction)
            self._channel.on_active()

    def on_not_leading(self) -> None:
        if self._controller is not None:
            self._controller.on_not_leading()

    def on_leader(self, leader_id: int, epoch: int) -> None:
        self._channel.on_leader(leader_id, epoch)
        if leader_id >= 0:
            self._heartbeat_now()  # a new controller has received no heartbeat yet

    # --- publishing -----------------------------------------------------------------------------------------------

    def _publish(
        self, image: MetadataImage, delta: MetadataDelta, open_transaction: list[MetadataRecord] | None
    ) -> Work:
        """Slow parts apply the image in slices (`CurrentImage.prepare`); then it is published in one turn."""
        if delta.features:
            check_features(image)
        check_no_tiers(image, delta)
        yield from self._current.prepare(image, delta)
        self.image, self.open_transaction = image, open_transaction
        self._current.publish(image, delta)
        if not self._snapshot_asked and self._quorum.snapshots.due():
            self._snapshot_asked = True
            self._reactor.soon(self._take_snapshot)

    def _take_snapshot(self) -> None:
        if self.in_transaction or self._reactor.scope.stopping:
            self._snapshot_asked = False  # the next image asks again
            return
        image = self.image
        values = (encode_record(record) for record in snapshot_records(image))
        work = self._quorum.snapshots.encode(values, image.epoch, image.timestamp_ms)
        self._slices.start(work, lambda data: self._store_snapshot(image, data), self._on_failed)

    def _store_snapshot(self, image: MetadataImage, data: bytearray) -> None:
        if not self._reactor.scope.stopping:
            self._reactor.scope.start(self._write_snapshot(image, data), name="metadata snapshot")

    async def _write_snapshot(self, image: MetadataImage, data: bytearray) -> None:
        try:
            await self._quorum.snapshots.store(SnapshotId(image.offset + 1, image.epoch), data)
        except OSError as error:
            self._reactor.fatal(error)
        finally:
            self._snapshot_asked = False

    def _on_failed(self, error: BaseException) -> None:
        self._reactor.fatal(error)
