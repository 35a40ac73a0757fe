"""MetadataLoader: replays what the quorum has committed into images, and publishes them. On every node, leader or not.

Driven by: the quorum, whose one listener it is (`broker.quorum.quorum.QuorumListener`).
Emits: each new image with its delta: to the node, then to its controller, then to the channel that waits for changes; the
quorum's leadership to controller and channel; snapshots when the quorum says that one is due.

What is committed together is published together: one image for each call of `on_committed`. A snapshot replaces everything; its
delta is the difference to what was published before.

Invariants: images are published in the order of the log, and only what is committed; the records of an open metadata transaction
are in no image, so no snapshot is taken while one is open. A finalized feature that this node does not support, and a record
that contradicts the image, stop the node.
Follows KIP-630 (snapshots), KIP-868 (transactions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.metadata.features import check_features
from barnabas.broker.metadata.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, difference
from barnabas.broker.metadata.records import MetadataRecord, decode_record
from barnabas.broker.metadata.replay import ImageBuilder
from barnabas.broker.quorum.snapshots import SnapshotId
from barnabas.errors import InvariantViolated, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.records import decode_records, iter_batches

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["MetadataLoader"]


class MetadataLoader:
    """See the module.

    Attributes:
        image: the newest that was published.
        open_transaction: the records of a metadata transaction that is not ended yet, None where none is open.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.image: MetadataImage = EMPTY_IMAGE
        self.open_transaction: list[MetadataRecord] | None = None
        self._snapshot_asked = False

    @property
    def in_transaction(self) -> bool:
        """Whether a metadata transaction is open."""
        return self.open_transaction is not None

    # --- what the quorum says -------------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: SnapshotId, values: list[bytes]) -> None:
        """Everything below the snapshot's end is replaced by these records.

        Raises:
            InvariantViolated: the records contradict one another, or are malformed.
            UnsupportedFeatures: a finalized feature is not served here.
        """
        builder = ImageBuilder(EMPTY_IMAGE)
        try:
            for value in values:
                builder.replay(decode_record(value))
        except RemoteProtocolError as error:
            raise InvariantViolated(f"metadata snapshot {snapshot} is damaged: {error}") from error
        builder.advance(snapshot.end_offset - 1, snapshot.epoch, self.node.clock.now_ms())
        self.open_transaction = None
        image = builder.image()
        self._publish(image, difference(self.image, image))

    def on_committed(self, batches: Buffer) -> None:
        """Replays whole committed batches, and publishes what they amount to. Raises as `on_snapshot`."""
        builder = ImageBuilder(self.image, self.open_transaction)
        try:
            for position, header in iter_batches(batches):
                if not header.is_control:
                    for record in decode_records(batches, position, header):
                        if record.value is not None:
                            builder.replay(decode_record(record.value))
                builder.advance(header.last_offset, header.leader_epoch, header.max_timestamp)
        except RemoteProtocolError as error:
            raise InvariantViolated(
                f"the metadata log is damaged behind offset {self.image.offset}: {error}"
            ) from error
        self.open_transaction = builder.transaction
        self._publish(builder.image(), builder.delta)

    def on_leading(self, epoch: int) -> None:
        """This node leads the quorum, and everything committed before is published."""
        if self.node.quorum_controller is not None:
            self.node.quorum_controller.on_leading(epoch)
            self.node.controller.on_active()

    def on_not_leading(self) -> None:
        """It leads no more."""
        if self.node.quorum_controller is not None:
            self.node.quorum_controller.on_not_leading()

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """The quorum has another leader, or (−1) none that is known."""
        self.node.controller.on_leader(leader_id, epoch)

    # --- publishing -----------------------------------------------------------------------------------------------

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.features:
            check_features(image)
        self.image = image
        node = self.node
        node.on_image(image, delta)
        if node.quorum_controller is not None:
            node.quorum_controller.on_image(image, delta)
        self.node.controller.on_image(image)
        if not self._snapshot_asked and node.quorum.snapshot_due():
            self._snapshot_asked = True
            node.soon(self._take_snapshot)

    def _take_snapshot(self) -> None:
        self._snapshot_asked = False
        if self.in_transaction:
            return  # the next image asks again
        try:
            self.node.quorum.take_snapshot(self.image)
        except OSError as error:
            self.node.fatal(error)
