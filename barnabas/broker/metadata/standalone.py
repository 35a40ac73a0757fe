"""Controller of a lone node: the shell around the metadata decisions. Queue, append, replay, publish, answer.

Driven by: requests of handlers and coordinators, registration by the lifecycle, commits of the metadata log.
Emits: batches to the metadata log, images with their deltas to `node.on_image`, then the answers.

What arrives in one wake-up, or while a sync runs, is decided together: each decision sees the image with everything decided
before it, all of their records go into one batch each and one sync. The new image is published when the batch is committed, and
answers leave after it, so that whoever is answered finds the change in `node.image`.

Invariants: decisions are made one after another, never on an image that lacks a record already appended; an image is published
only once it is committed; answers leave in the order of the requests. A failed append stops the node (nothing is undone: what
is on disk is unknown).
Follows KIP-631; the shape is that of Kafka's QuorumController.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.broker.metadata import configs, topics
from barnabas.broker.metadata.decision import ClusterView, MetadataDecision
from barnabas.broker.metadata.features import UnsupportedFeatures, check_features
from barnabas.broker.metadata.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from barnabas.broker.metadata.internal_topics import topic_to_ensure
from barnabas.broker.metadata.records import AbortTransactionRecord, MetadataRecord, ProducerIdsRecord, decode_record
from barnabas.broker.metadata.registration import bootstrap_records
from barnabas.broker.metadata.replay import ImageBuilder
from barnabas.broker.metadata.requests import DECISIONS
from barnabas.broker.quorum.metadata_log import MetadataLog
from barnabas.broker.quorum.snapshots import read_bootstrap
from barnabas.broker.quorum.voters import NotTheSoleVoter
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import PRODUCER_ID_BLOCK_SIZE
from barnabas.protocol.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["Controller"]

log = logging.getLogger(__name__)

A = TypeVar("A")
Decide = Callable[[ClusterView], MetadataDecision[Any]]
Done = Callable[[Any], None]


class Controller:
    """The metadata controller of this node.

    Attributes:
        image: the newest committed image.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.image = EMPTY_IMAGE
        self._log: MetadataLog | None = None
        self._queue: list[tuple[Decide, Done]] = []
        self._flush_due = False
        self._in_flight = False
        self._closed = False

    # --- life -----------------------------------------------------------------------------------------------------

    def load(self) -> MetadataImage:
        """Opens the metadata log and replays it, begins this node's epoch in it, and makes a new cluster's first records.

        Blocks on the disk; start-up only.

        Raises:
            UnsupportedFeatures: a finalized feature is above what this broker can do; nothing was written.
            NotTheSoleVoter: the quorum has other voters; nothing was written.
            InvariantViolated: the log is damaged.
            OSError: the disk failed.
        """
        node = self.node
        metadata_log = MetadataLog(
            node.disk,
            node.config,
            node.clock,
            start=node.scope.start,
            on_failure=node.fatal,
            clean=node.lifecycle.clean,
        )
        try:
            builder = metadata_log.load()
            self._check_features(builder.image())
        except (UnsupportedFeatures, NotTheSoleVoter):
            node.lifecycle.give_back()
            raise
        self._log = metadata_log
        metadata_log.begin_epoch()
        if builder.in_transaction:
            # KIP-868: whoever begins an epoch aborts the transaction that its predecessor left open.
            self._write_now(builder, [AbortTransactionRecord(reason="the controller was restarted")])
        if not builder.image().features:
            formatted = [decode_record(value) for value in read_bootstrap(node.disk)]
            self._write_now(builder, bootstrap_records(node.config, formatted))
        self.image = builder.image()
        node.config.reconfigure(self.image.cluster_config, self.image.broker_config(node.node_id))
        return self.image

    @staticmethod
    def _check_features(image: MetadataImage) -> None:
        check_features(image)

    def _write_now(self, builder: ImageBuilder, records: Sequence[MetadataRecord]) -> None:
        self._append(builder, records)
        self.metadata_log.sync_now()

    def close(self) -> None:
        """Clean stop: everything is synced and the log closed. Requests that wait are dropped."""
        self._closed = True
        self._queue.clear()
        if self._log is not None:
            self._log.close()

    @property
    def metadata_log(self) -> MetadataLog:
        """The metadata log; InvariantViolated before `load`."""
        if self._log is None:
            raise InvariantViolated("the metadata log is not open")
        return self._log

    @property
    def leader_epoch(self) -> int:
        """The Raft epoch in which this node leads the quorum."""
        return self.metadata_log.leader_epoch

    # --- requests -------------------------------------------------------------------------------------------------

    def create_topics(
        self, request: CreateTopicsRequest, done: Callable[[CreateTopicsResponse | BrokerError], None]
    ) -> None:
        """Creates topics; `done` gets the response once the topics are in `node.image`."""
        self.submit(lambda view: topics.create_topics(view, request), done)

    def delete_topics(
        self, states: Sequence[DeleteTopicState], done: Callable[[DeleteTopicsResponse | BrokerError], None]
    ) -> None:
        """Deletes topics by name or id."""
        self.submit(lambda view: topics.delete_topics(view, states), done)

    def create_partitions(
        self, request: CreatePartitionsRequest, done: Callable[[CreatePartitionsResponse | BrokerError], None]
    ) -> None:
        """Adds partitions to topics."""
        self.submit(lambda view: topics.create_partitions(view, request), done)

    def alter_configs(
        self,
        request: IncrementalAlterConfigsRequest,
        done: Callable[[IncrementalAlterConfigsResponse | BrokerError], None],
    ) -> None:
        """Changes settings of topics, of this broker, or of all brokers."""
        self.submit(lambda view: configs.alter_configs(view, request), done)

    def request(self, request: Any, done: Done, *, timeout_ms: int = 0) -> None:
        """Whatever a controller is asked: `done` gets the response once its changes are in `node.image`."""
        self.submit(lambda view: DECISIONS[type(request)](view, request), done)

    def allocate_producer_ids(self, done: Callable[[int | BrokerError], None]) -> None:
        """Takes a block of producer ids for this broker; `done` gets the first of PRODUCER_ID_BLOCK_SIZE ids (KIP-730)."""
        self.submit(self._decide_producer_ids, done)

    def _decide_producer_ids(self, view: ClusterView) -> MetadataDecision[int]:
        broker = view.image.brokers.get(self.node.node_id)
        if broker is None:
            raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {self.node.node_id} is not registered")
        first = view.image.next_producer_id
        record = ProducerIdsRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE
        )
        return MetadataDecision(first, [record])

    def ensure_topic(self, name: str, done: Callable[[BrokerError | None], None]) -> None:
        """Makes sure that a topic exists: an internal one with its own settings, another with the broker's defaults.

        `done` gets None once it is in `node.image`, else why it cannot be created (INVALID_TOPIC_EXCEPTION,
        INVALID_REPLICATION_FACTOR).
        """

        def decide(view: ClusterView) -> MetadataDecision[BrokerError | None]:
            if view.image.topic(name) is not None:
                return MetadataDecision(None)
            request = CreateTopicsRequest(topics=[topic_to_ensure(name, view.config)])
            decision = topics.create_topics(view, request)
            result = decision.answer.topics[0]
            if result.error_code:
                return MetadataDecision(BrokerError(ErrorCode(result.error_code), result.error_message))
            return MetadataDecision(None, decision.records)

        self.submit(decide, done)

    # --- decide, append, replay, publish, answer ------------------------------------------------------------------

    def submit(
        self, decide: Callable[[ClusterView], MetadataDecision[A]], done: Callable[[A | BrokerError], None]
    ) -> None:
        """Queues a decision. `done` gets its answer once its records are committed and published; a BrokerError that
        `decide` raises goes to `done`, too."""
        if self._closed:
            done(BrokerError(ErrorCode.NOT_CONTROLLER, "the controller is closed"))
            return
        self._queue.append((decide, done))
        self._schedule()

    def _schedule(self) -> None:
        if self._queue and not self._in_flight and not self._flush_due:
            self._flush_due = True
            self.node.soon(self._flush)

    def _flush(self) -> None:
        """Decides everything that is queued and appends it."""
        self._flush_due = False
        if self._closed or self._in_flight:
            return
        queue, self._queue = self._queue, []
        builder = ImageBuilder(self.image)
        answers: list[Callable[[], None]] = []
        image = self.image
        appended = stale = False
        for decide, done in queue:
            if stale:
                image, stale = builder.image(), False
            view = ClusterView(image, self.node.config, self.node.rng.uuid, self.metadata_log.log_end_offset)
            answer: Any
            try:
                decision = decide(view)
                answer = decision.answer
            except BrokerError as error:
                decision, answer = MetadataDecision(None), error
            if decision.records:
                try:
                    self._append(builder, decision.records)
                except OSError as error:
                    self.node.fatal(error)
                    return
                appended = stale = True
            answers.append(_answer(done, answer))
        if not appended:
            self._answer_all(answers)
            return
        self._in_flight = True
        self.metadata_log.when_committed(
            self.metadata_log.log_end_offset, lambda: self._on_committed(builder.image(), builder.delta, answers)
        )

    def _append(self, builder: ImageBuilder, records: Sequence[MetadataRecord]) -> None:
        last_offset = self.metadata_log.append(records)
        for record in records:
            builder.replay(record)
        builder.advance(last_offset, self.metadata_log.leader_epoch, self.node.clock.now_ms())

    def _on_committed(self, image: MetadataImage, delta: MetadataDelta, answers: list[Callable[[], None]]) -> None:
        self._in_flight = False
        self.image = image
        self.node.on_image(image, delta)
        self._answer_all(answers)
        if self.metadata_log.snapshot_due():
            self.metadata_log.take_snapshot(image)
        self._schedule()

    @staticmethod
    def _answer_all(answers: list[Callable[[], None]]) -> None:
        for answer in answers:
            try:
                answer()
            except InvariantViolated:
                raise
            except Exception:
                log.exception("an answer of the controller could not be delivered")


def _answer(done: Done, answer: Any) -> Callable[[], None]:
    return lambda: done(answer)
