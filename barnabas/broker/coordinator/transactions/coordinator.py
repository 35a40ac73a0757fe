"""Transaction coordinator of a node: its shards of `__transaction_state`, their time, and the markers they owe.

Driven by: handlers/transactions.py, Produce and TxnOffsetCommit (`verify_or_add`), elections and resignations, one timer for
timeouts and one for expiry, the marker channel.
Emits: writes to the ShardHost, prepared transactions to the marker channel, completions, answers once they are committed.

A shell: no rule of the protocol is here but which errors older clients are told. The way of a commit is PREPARE → markers →
COMPLETE, each step within the wake-up of the one before where nothing has to be waited for, so that the client's next request
finds the transaction complete; all three are grouped over the transactions of a wake-up.

Invariants: markers leave only for what is committed; a prepared transaction is completed by whoever coordinates it, for ever.
Timeouts are measured by the monotonic clock within one coordinator's life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from barnabas.broker.config import BrokerConfig
from barnabas.broker.coordinator.host.shard import Decision, ShardHost
from barnabas.broker.coordinator.transactions.broker_gateway import BrokerGateway
from barnabas.broker.coordinator.transactions.holding import HeldRequests, Waiter
from barnabas.broker.coordinator.transactions.marker_writer import MarkerWriter
from barnabas.broker.coordinator.transactions.markers import MarkerChannel
from barnabas.broker.coordinator.transactions.producer_ids import ProducerIds
from barnabas.broker.coordinator.transactions.records import TransactionRecord
from barnabas.broker.coordinator.transactions.shard import Ended, ProducerIdentity, TransactionShard
from barnabas.broker.coordinator.transactions.state import (
    NO_TIMEOUT_MS,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from barnabas.broker.coordinator.transactions.verification import Question, VerificationChannel
from barnabas.broker.current_image import CurrentImage
from barnabas.broker.long_work import LongWork
from barnabas.broker.metadata.image import MetadataDelta, MetadataImage
from barnabas.broker.peers import Peers
from barnabas.broker.reactor import Reactor
from barnabas.broker.replica.replicas import Replicas
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import PRODUCER_EPOCH_MAX
from barnabas.protocol.internal_topics import TRANSACTION_STATE_TOPIC

__all__ = ["TransactionCoordinator"]

log = logging.getLogger(__name__)

RETRY_MS = 100  # before a completion is tried again that could not be appended
TOMBSTONES_PER_TURN = 500  # about 20 ms of the loop
EXPIRY_PAUSE_MS = 50  # between turns, for other work
ABORT_RETRY_MS = 1_000  # before a timeout is looked at again that could not be aborted

A = TypeVar("A")
Done = Callable[[A | BrokerError], None]


class TransactionCoordinator:
    """See the module. Every broker has one.

    Args:
        marker_writer: writes the markers of partitions that this node leads.
        allocate_producer_ids: takes a block of producer ids from the controller.

    Attributes:
        concurrent_answers: requests answered CONCURRENT_TRANSACTIONS since the start; clients sleep 20–100 ms on each.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        *,
        current: CurrentImage,
        peers: Peers,
        replicas: Replicas,
        long_work: LongWork,
        marker_writer: MarkerWriter,
        allocate_producer_ids: Callable[[Callable[[int | BrokerError], None]], None],
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._current = current
        self.host: ShardHost[TransactionShard] = ShardHost(
            TRANSACTION_STATE_TOPIC, reactor, replicas, self._make_shard, self._partition_count, in_thread=long_work.run
        )
        self._gateway = BrokerGateway(reactor, config, current, peers, marker_writer)
        self.markers = MarkerChannel(self._gateway, self._complete)
        self.verifications = VerificationChannel(
            self._gateway,
            patience_ms=partial(config.get_int, "add.partitions.to.txn.retry.backoff.max.ms"),
            backoff_ms=partial(config.get_int, "add.partitions.to.txn.retry.backoff.ms"),
        )
        self.producer_ids = ProducerIds(allocate_producer_ids)
        self.held = HeldRequests(reactor.soon, reactor.call_later)
        self.concurrent_answers = 0
        self._timeout_timer: Any = None
        self._timeout_due_ms = 0
        self._expiry_timer: Any = None
        self._stopped = False

    # --- life -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to look for idle transactional ids."""
        self._arm_expiry()

    def stop(self) -> None:
        """Drops the shards; what is prepared is resumed by the next coordinator."""
        self._stopped = True
        for timer in (self._timeout_timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        self._timeout_timer = self._expiry_timer = None
        log.info("%d requests were answered CONCURRENT_TRANSACTIONS since the start", self.concurrent_answers)
        self.host.close()

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This node leads a partition of `__transaction_state`."""
        self.host.on_elected(partition, leader_epoch)

    def on_resigned(self, partition: int) -> None:
        """It leads it no more."""
        self.host.on_resigned(partition)

    def on_image(self, _former: MetadataImage, _image: MetadataImage, delta: MetadataDelta) -> None:
        """Where partitions have other leaders, requests to the former leaders are sent again."""
        if delta.partitions or delta.deleted:
            self.markers.on_leaders_moved()
            self.verifications.on_leaders_moved()

    def _make_shard(self, partition: int, leader_epoch: int) -> TransactionShard:
        return TransactionShard(partition, leader_epoch, self, self._record_version)

    def _partition_count(self) -> int:
        topic = self._current.image.topic(TRANSACTION_STATE_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    @property
    def transaction_version(self) -> int:
        """The finalized level of the feature transaction.version."""
        return self._current.image.feature("transaction.version")

    def _record_version(self) -> int:
        return 1 if self.transaction_version >= 1 else 0

    # --- what shards go through (ShardOwner) ------------------------------------------------------------------------------

    def on_shard_active(self, shard: TransactionShard) -> None:
        clock = self._reactor.clock
        shard.restart_deadlines(clock.now_ms(), clock.monotonic_ms())
        for prepared in shard.prepared():
            self.markers.add(shard.partition, shard.coordinator_epoch, prepared)
        deadline_ms = shard.next_deadline_ms()
        if deadline_ms is not None:
            self._arm_timeout(deadline_ms)

    def on_transition_committed(self, shard: TransactionShard, metadata: TransactionMetadata) -> None:
        state = metadata.state
        if metadata.is_prepared:
            self.markers.add(shard.partition, shard.coordinator_epoch, metadata)
        elif state is TransactionState.ONGOING and not metadata.is_two_phase:
            self._arm_timeout(metadata.started_monotonic_ms + metadata.timeout_ms)
        else:
            self.held.release(metadata.transactional_id)

    def on_shard_resigned(self, shard: TransactionShard) -> None:
        self.markers.drop(shard.partition)
        self.held.release_partition(shard.partition)

    # --- requests ---------------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        done: Done[Ended],
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> None:
        """InitProducerId: a new id for a merely idempotent producer, or the next epoch of a transactional one.

        Args:
            two_phase: its transactions have no timeout (KIP-939).
            keep_prepared: an ongoing transaction is handed over instead of aborted (KIP-939); it is `kept` in the answer.

        Answers INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS (a transaction is being ended),
        PRODUCER_FENCED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED (two-phase commit is switched off), and where the coordinator
        is not here or not ready.
        """
        if transactional_id is None:

            def with_id(error: BrokerError | None) -> None:
                done(error or Ended(ProducerIdentity(self.producer_ids.take(), 0), None))

            if keep_prepared or two_phase:
                done(BrokerError(ErrorCode.INVALID_REQUEST, "two-phase commit needs a transactional id"))
            else:
                self.producer_ids.when_available(with_id)
            return
        config = self._config
        if not transactional_id:
            done(BrokerError(ErrorCode.INVALID_REQUEST))
            return
        if two_phase:
            if not config.get_bool("transaction.two.phase.commit.enable"):
                done(BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
                return
            timeout_ms = NO_TIMEOUT_MS
        elif not 0 < timeout_ms <= config.get_int("transaction.max.timeout.ms"):
            done(BrokerError(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
            return
        if keep_prepared and self._record_version() < 1:
            text = "to take a prepared transaction over needs transaction.version 1 or above"
            done(BrokerError(ErrorCode.UNSUPPORTED_VERSION, text))
            return
        self.held.supersede(transactional_id)

        def decide(shard: TransactionShard, now_ms: int) -> Decision[Ended, TransactionRecord]:
            return shard.init_producer_id(
                transactional_id,
                timeout_ms,
                expected,
                self.producer_ids.take,
                self.transaction_version,
                now_ms,
                keep_prepared=keep_prepared,
            )

        def decided(outcome: Ended | BrokerError) -> None:
            if isinstance(outcome, BrokerError):
                self._refuse(outcome, done)
            elif outcome.prepared is not None:  # an ongoing transaction is being aborted first
                self._refuse(BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS), done)
            else:
                done(outcome)

        def with_ids(error: BrokerError | None) -> None:
            if error is not None:
                done(error)
            else:
                self._write(transactional_id, decide, decided)

        self.producer_ids.when_available(with_ids)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        transaction_version: int,
        done: Callable[[BrokerError | None], None],
        waiter: Waiter | None = None,
    ) -> None:
        """AddPartitionsToTxn and AddOffsetsToTxn: all of them or none.

        Answers INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, and where the
        coordinator is not here or not ready. With a `waiter` the request is held, for a while, until the transaction before
        is complete (`holding.py`).
        """
        if not transactional_id:
            done(BrokerError(ErrorCode.INVALID_REQUEST))
            return
        monotonic_ms = self._reactor.clock.monotonic_ms()

        def decide(shard: TransactionShard, now_ms: int) -> Decision[None, TransactionRecord]:
            return shard.add_partitions(
                transactional_id, producer, partitions, transaction_version, now_ms, monotonic_ms
            )

        def decided(outcome: BrokerError | None) -> None:
            if outcome is None:
                done(None)
            elif (
                waiter is None
                or outcome.code is not ErrorCode.CONCURRENT_TRANSACTIONS
                or not self._hold(transactional_id, waiter, decide, outcome, done)
            ):
                self._refuse(outcome, done)

        self._write(transactional_id, decide, decided)

    def _hold(
        self,
        transactional_id: str,
        waiter: Waiter,
        decide: Callable[[TransactionShard, int], Decision[None, TransactionRecord]],
        refusal: BrokerError,
        done: Callable[[BrokerError | None], None],
    ) -> bool:
        """Holds a request that only the completion of a transaction stands against; False where something else does."""
        wait_ms = self._config.get_int("add.partitions.to.txn.retry.backoff.max.ms")
        if waiter.wait_ms_max is not None:
            wait_ms = min(wait_ms, waiter.wait_ms_max)
        partition, shard = self.host.shard_for(transactional_id)
        before = shard.transactions.get(transactional_id)
        if wait_ms <= 0 or before is None or not before.is_prepared:
            return False

        def again() -> None:
            if not waiter.is_gone():
                self._write(transactional_id, decide, decided)

        def decided(outcome: BrokerError | None) -> None:
            if outcome is None:
                done(None)
            else:
                self._refuse(outcome, done)

        waiter.on_held(self.held.hold(transactional_id, partition, wait_ms, again, lambda: self._refuse(refusal, done)))
        return True

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
        done: Callable[[dict[TopicPartition, ErrorCode]], None],
        waiter: Waiter | None = None,
    ) -> None:
        """Whether partitions belong to a producer's transaction, for an append that is about to begin one there (KIP-890).

        The coordinator may be on any broker: where it is not here, `done` is called after this call.

        Args:
            add: adds them, as clients of TV2 expect of Produce 12 and TxnOffsetCommit 5; else only verifies.
            waiter: lets an addition be held, as in `add_partitions`.
            done: gets a code for each partition; INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED, which appends do not know.
        """
        producer = ProducerIdentity(producer_id, producer_epoch)
        if transactional_id and self._gateway.coordinator_of(transactional_id) != self._config.node_id:
            is_gone = _never if waiter is None else waiter.is_gone
            self.verifications.ask(
                Question(transactional_id, producer, partitions, add=add, done=done, is_gone=is_gone)
            )
            return

        def refused(error: BrokerError) -> None:
            code = ErrorCode.INVALID_PRODUCER_EPOCH if error.code is ErrorCode.PRODUCER_FENCED else error.code
            done(dict.fromkeys(partitions, code))

        def added(error: BrokerError | None) -> None:
            if error is None:
                done(dict.fromkeys(partitions, ErrorCode.NONE))
            else:
                refused(error)

        if add:
            self.add_partitions(transactional_id, producer, partitions, 2, added, waiter)
            return
        try:
            errors = self.verify_partitions(transactional_id, producer, partitions)
        except BrokerError as error:
            refused(error)
            return
        done(errors)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """A code for each partition: NONE or TRANSACTION_ABORTABLE.

        Raises:
            BrokerError: the same codes as `add_partitions` answers.
        """
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        partition, shard = self.host.shard_for(transactional_id)
        self.host.check_leads(partition)  # the transaction may have ended at another coordinator
        try:
            return shard.verify_partitions(transactional_id, producer, partitions)
        except BrokerError as error:
            self._count(error)
            raise

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        commit: bool,
        transaction_version: int,
        done: Done[ProducerIdentity],
    ) -> None:
        """EndTxn: answered when the decision is committed, with the identity for the next transaction under TV2.

        Answers INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE, and
        where the coordinator is not here or not ready.
        """
        if not transactional_id:
            done(BrokerError(ErrorCode.INVALID_REQUEST))
            return
        self.held.supersede(transactional_id)

        def decide(shard: TransactionShard, now_ms: int) -> Decision[Ended, TransactionRecord]:
            return shard.end_transaction(
                transactional_id,
                producer,
                commit=commit,
                transaction_version=transaction_version,
                new_producer_id=self.producer_ids.take,
                now_ms=now_ms,
            )

        def decided(outcome: Ended | BrokerError) -> None:
            if isinstance(outcome, BrokerError):
                self._refuse(outcome, done)
            else:
                done(outcome.identity)

        def with_ids(error: BrokerError | None) -> None:
            if error is not None:
                done(error)
            else:
                self._write(transactional_id, decide, decided)

        if transaction_version >= 2 and producer.producer_epoch >= PRODUCER_EPOCH_MAX:
            self.producer_ids.when_available(with_ids)  # its last epoch: the next transaction needs a new id
        else:
            with_ids(None)

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """What is committed of a transactional id.

        Raises:
            BrokerError: INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND, and where the coordinator is not here or not ready.
        """
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        _, shard = self.host.shard_for(transactional_id)
        metadata = shard.transactions.get(transactional_id)
        if metadata is None or _is_dying(shard, transactional_id):
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return metadata

    def all_transactions(self) -> list[TransactionMetadata]:
        """Every transactional id coordinated here, by partition and age.

        Raises:
            BrokerError: COORDINATOR_LOAD_IN_PROGRESS while any partition loads.
        """
        if self.host.is_loading:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [
            metadata
            for _, shard in self.host.active_shards()
            for transactional_id, metadata in shard.transactions.items()
            if not _is_dying(shard, transactional_id)
        ]

    def _write(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard, int], Decision[A, TransactionRecord]],
        done: Done[A],
    ) -> None:
        try:
            partition = self.host.partition_of(transactional_id)
        except BrokerError:
            # Kafka answers so while its count of partitions is known from the configuration but the topic is not there.
            done(BrokerError(ErrorCode.NOT_COORDINATOR))
            return
        self.host.write(partition, decide, done)

    def _refuse(self, error: BrokerError, done: Callable[[BrokerError], None]) -> None:
        self._count(error)
        done(error)

    def _count(self, error: BrokerError) -> None:
        if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.concurrent_answers += 1

    # --- completion -----------------------------------------------------------------------------------------------------

    def _complete(self, partition: int, prepared: TransactionMetadata) -> None:
        """Every marker is written: COMPLETE_* follows."""

        def done(outcome: bool | BrokerError) -> None:
            if not isinstance(outcome, BrokerError) or self._stopped or not self.host.is_here(partition):
                return  # where it has another coordinator, that one writes the markers once more and completes it
            log.info("%s could not be completed, trying again: %s", prepared.transactional_id, outcome)
            self._reactor.call_later(RETRY_MS, lambda: self._complete(partition, prepared))

        self.host.write(partition, lambda shard, now_ms: shard.complete(prepared, now_ms), done)

    # --- time -------------------------------------------------------------------------------------------------------------

    def _arm_timeout(self, deadline_ms: int) -> None:
        if self._stopped or (self._timeout_timer is not None and self._timeout_due_ms <= deadline_ms):
            return
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        self._timeout_due_ms = deadline_ms
        delay_ms = max(deadline_ms - self._reactor.clock.monotonic_ms(), 0)
        self._timeout_timer = self._reactor.call_later(delay_ms, self._on_timeout)

    def _on_timeout(self) -> None:
        """Aborts what is past its deadline; transactions that ended meanwhile have no deadline any more."""
        self._timeout_timer = None
        now_ms = self._reactor.clock.monotonic_ms()
        next_ms: int | None = None
        for partition, shard in self.host.active_shards():
            for timed_out in shard.timed_out(now_ms):
                self._abort(partition, timed_out)
            deadline_ms = shard.next_deadline_ms()
            if deadline_ms is not None:
                deadline_ms = deadline_ms if deadline_ms > now_ms else now_ms + ABORT_RETRY_MS
                next_ms = deadline_ms if next_ms is None else min(next_ms, deadline_ms)
        if next_ms is not None:
            self._arm_timeout(next_ms)

    def _abort(self, partition: int, timed_out: TransactionMetadata) -> None:
        def done(outcome: Ended | BrokerError) -> None:
            if not isinstance(outcome, BrokerError):
                log.info("%s timed out after %d ms, aborting", timed_out.transactional_id, timed_out.timeout_ms)

        def decide(shard: TransactionShard, now_ms: int) -> Decision[Ended, TransactionRecord]:
            return shard.abort_timed_out(timed_out, self.producer_ids.take, self.transaction_version, now_ms)

        def with_ids(error: BrokerError | None) -> None:
            if error is None:  # else it is tried again in a second
                self.host.write(partition, decide, done)

        if timed_out.is_epoch_exhausted:
            self.producer_ids.when_available(with_ids)
        else:
            with_ids(None)

    def _arm_expiry(self) -> None:
        interval_ms = self._config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms")
        self._expiry_timer = self._reactor.call_later(interval_ms, partial(self._on_expiry, 0))

    def _on_expiry(self, first: int) -> None:
        """Looks through the partitions from `first` on; after a batch of tombstones other work has its turn."""
        before_ms = self._reactor.clock.now_ms() - self._config.get_int("transactional.id.expiration.ms")
        for partition, shard in self.host.active_shards():
            if partition < first:
                continue
            expirable = shard.expirable(before_ms)[:TOMBSTONES_PER_TURN]
            for transactional_id in expirable:
                self._expire(partition, transactional_id, before_ms)
            if expirable:
                again = partition if len(expirable) == TOMBSTONES_PER_TURN else partition + 1
                self._expiry_timer = self._reactor.call_later(EXPIRY_PAUSE_MS, partial(self._on_expiry, again))
                return
        self._arm_expiry()

    def _expire(self, partition: int, transactional_id: str, before_ms: int) -> None:
        self.host.write(partition, lambda shard, _now_ms: shard.expire(transactional_id, before_ms), _ignore)


def _is_dying(shard: TransactionShard, transactional_id: str) -> bool:
    pending = shard.pending.get(transactional_id)
    return pending is not None and pending.state is TransactionState.DEAD


def _never() -> bool:
    return False


def _ignore(_outcome: BrokerError | None) -> None:
    """An id that could not be expired is looked at again in an hour."""
