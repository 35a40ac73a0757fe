"""QuorumController: the active controller, while this node leads the metadata quorum. Queue, decide, append; answer when it holds.

Driven by: requests (`handle`, `submit`), the quorum's leadership (`on_leading`, `on_not_leading`), published images (`on_image`).
Emits: batches of records to the quorum; answers.

It decides on an image of its own that holds everything appended, committed or not. What arrives in one wake-up is decided one
after another, a batch each, and synced together. The answer leaves once its records are committed *and* in `node.image`, so that
whoever is answered finds the change there; an answer without records waits for what it was decided upon. The next wake-up
decides without waiting for the last one's commit.

A new leader starts from `node.image`, which then holds everything that ever was committed; it aborts a metadata transaction that
its predecessor left open, and writes the first records of a new cluster.

Invariants: decisions see every record appended before them; answers leave in the order of the requests; when leadership is lost,
all that waits is answered NOT_CONTROLLER, whether its records will be committed by a successor or not.
Follows KIP-631 and KIP-868; the shape is that of Kafka's QuorumController.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from barnabas.broker.metadata.decision import ClusterView, MetadataDecision, deliver
from barnabas.broker.metadata.elections import UNCLEAN_KEY
from barnabas.broker.metadata.image import BROKER_RESOURCE, EMPTY_IMAGE, TOPIC_RESOURCE, MetadataDelta, MetadataImage
from barnabas.broker.metadata.isr import elect_unclean_leaders
from barnabas.broker.metadata.liveness import Liveness
from barnabas.broker.metadata.records import AbortTransactionRecord, MetadataRecord, decode_record
from barnabas.broker.metadata.registration import bootstrap_records
from barnabas.broker.metadata.replay import ImageBuilder
from barnabas.broker.metadata.requests import DECISIONS
from barnabas.broker.quorum.snapshots import read_bootstrap
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerRegistrationRequest

if TYPE_CHECKING:
    from barnabas.broker.connection import Connection
    from barnabas.broker.node import Node

__all__ = ["QuorumController"]

log = logging.getLogger(__name__)

A = TypeVar("A")
Decide = Callable[[ClusterView], MetadataDecision[Any]]
Done = Callable[[Any], None]

NOT_ACTIVE: Final = -1  # instead of an epoch


class _Queued(NamedTuple):
    decide: Decide
    done: Done


class _Answers(NamedTuple):
    """Answers that leave once everything below `next_offset` is published."""

    next_offset: int
    answers: list[tuple[Done, Any]]


class QuorumController:
    """See the module. There is one on every node with the role controller.

    Attributes:
        epoch: in which this node is the active controller, NOT_ACTIVE where it is not.
        image: the cluster with everything that was appended; of use while active only.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.epoch = NOT_ACTIVE
        self.image: MetadataImage = EMPTY_IMAGE
        self.liveness = Liveness(node, self)
        self._queue: list[_Queued] = []
        self._flush_due = False
        self._waiting: deque[_Answers] = deque()  # ascending by offset

    @property
    def active(self) -> bool:
        """Whether this node decides."""
        return self.epoch != NOT_ACTIVE

    # --- leadership -----------------------------------------------------------------------------------------------

    def on_leading(self, epoch: int) -> None:
        """This node leads, and `node.image` holds everything that was committed before.

        Raises:
            InvariantViolated: the log holds more than the image.
        """
        node = self.node
        self.epoch = epoch
        self.image = node.image
        if node.image.offset + 1 != node.quorum.log_end_offset:
            raise InvariantViolated(
                f"controller of epoch {epoch} begins at offset {node.image.offset + 1}, the log ends at "
                f"{node.quorum.log_end_offset}"
            )
        log.info("node %d is the controller in epoch %d", node.node_id, epoch)
        if node.loader.in_transaction:
            # KIP-868: whoever begins an epoch aborts the transaction that its predecessor left open.
            self._append(
                ImageBuilder(self.image, node.loader.open_transaction),
                [AbortTransactionRecord(reason="the controller changed")],
            )
        if not self.image.features:
            formatted = [decode_record(value) for value in read_bootstrap(node.disk)]
            self._append(ImageBuilder(self.image), bootstrap_records(node.config, formatted))
        self.liveness.begin()
        self.submit(elect_unclean_leaders)

    def on_not_leading(self) -> None:
        """Another node leads, or none: whoever waits must ask there."""
        if not self.active:
            return
        log.info("node %d is the controller no more", self.node.node_id)
        self.epoch = NOT_ACTIVE
        self.image = EMPTY_IMAGE
        self.liveness.end()
        waiting = [done for answers in self._waiting for done, _ in answers.answers]
        waiting += [queued.done for queued in self._queue]
        self._waiting.clear()
        self._queue.clear()
        for done in waiting:
            deliver(done, _not_controller(self.node.node_id))

    def close(self) -> None:
        """The node ends: nothing is decided or answered any more."""
        self.epoch = NOT_ACTIVE
        self.liveness.end()
        self._waiting.clear()
        self._queue.clear()

    # --- requests -------------------------------------------------------------------------------------------------

    def handle(self, request: Any, done: Done, *, source: Connection | None = None) -> None:
        """Serves a request of the controller listener, or of this node's own parts.

        Args:
            done: gets the response once it holds, or the BrokerError that refuses all of it; NOT_CONTROLLER where this node
                is not the active controller, or has ceased to be before the answer.
            source: the connection that the request came over; None: from this process.

        Raises:
            BrokerError: UNSUPPORTED_VERSION for a class of request that no controller serves.
        """
        if not self.active:
            done(_not_controller(self.node.node_id))
        elif isinstance(request, BrokerHeartbeatRequest):
            self.liveness.on_heartbeat(request, source, done)
        elif isinstance(request, BrokerRegistrationRequest):
            self.liveness.on_registration(request, done)
        else:
            decide = DECISIONS.get(type(request))
            if decide is None:
                raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"{type(request).__name__} is not for the controller")
            self.submit(lambda view: decide(view, request), done)

    def submit(
        self,
        decide: Callable[[ClusterView], MetadataDecision[A]],
        done: Callable[[A | BrokerError], None] = lambda answer: None,
    ) -> None:
        """Queues a decision. `done` gets its answer once its records are committed and published; a BrokerError that
        `decide` raises goes to `done`, too. Without `done` nobody waits for it."""
        if not self.active:
            done(_not_controller(self.node.node_id))
            return
        self._queue.append(_Queued(decide, done))
        if not self._flush_due:
            self._flush_due = True
            self.node.soon(self._flush)

    # --- decide, append, answer -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Decides everything that is queued and appends it."""
        self._flush_due = False
        if not self.active:
            return
        queue, self._queue = self._queue, []
        answers: list[tuple[Done, Any]] = []
        builder = ImageBuilder(self.image)
        for decide, done in queue:
            view = ClusterView(self.image, self.node.config, self.node.rng.uuid, self.node.quorum.log_end_offset)
            answer: Any
            try:
                decision = decide(view)
                if decision.records:
                    self._append(builder, decision.records)
                answer = decision.answer
            except BrokerError as error:
                answer = error
            except InvariantViolated:
                raise
            except Exception:  # a bug of one decision must not take the others' answers along
                log.exception("a decision of the controller failed")
                answer = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
            answers.append((done, answer))
        self._waiting.append(_Answers(self.node.quorum.log_end_offset, answers))
        self._answer(self.node.image)

    def _append(self, builder: ImageBuilder, records: Sequence[MetadataRecord]) -> None:
        last_offset = self.node.quorum.append(records)
        for record in records:
            builder.replay(record)
        builder.advance(last_offset, self.epoch, self.node.clock.now_ms())
        self.image = builder.image()

    # --- what is published ----------------------------------------------------------------------------------------

    def on_image(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """`node.image` is now this one: everything it holds is committed."""
        if not self.active:
            return
        if not self._queue and image.offset == self.image.offset:
            self.image = image  # the same content: let the copy go
        self._answer(image)
        if any(self._concerns_unclean_elections(image, kind, name) for kind, name in delta.configs):
            self.submit(elect_unclean_leaders)

    @staticmethod
    def _concerns_unclean_elections(image: MetadataImage, kind: int, name: str) -> bool:
        return kind in (TOPIC_RESOURCE, BROKER_RESOURCE) and UNCLEAN_KEY in image.config(kind, name)

    def _answer(self, image: MetadataImage) -> None:
        while self._waiting and self._waiting[0].next_offset <= image.offset + 1:
            for done, answer in self._waiting.popleft().answers:
                deliver(done, answer)


def _not_controller(node_id: int) -> BrokerError:
    return BrokerError(ErrorCode.NOT_CONTROLLER, f"node {node_id} is not the active controller")
