"""Transaction coordinator of a node: shell of its shards of `__transaction_state`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from barnabas.broker.api.call import Done
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinator.broker_gateway import BrokerGateway
from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.coordinator.marker_writer import MarkerWriter
from barnabas.broker.coordinator.shard_host import ShardHost
from barnabas.broker.coordinator.transaction_timeouts import TransactionalIdExpiry, TransactionTimeouts
from barnabas.broker.coordinator.transactions.answer_counts import AnswerCounts, are_batches
from barnabas.broker.coordinator.transactions.holding import HeldRequests, Waiter
from barnabas.broker.coordinator.transactions.markers import MarkerChannel
from barnabas.broker.coordinator.transactions.producer_ids import ProducerIds
from barnabas.broker.coordinator.transactions.records import TransactionRecord
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch, TransactionAnswer, TransactionShard
from barnabas.broker.coordinator.transactions.state import NO_TIMEOUT_MS, TransactionMetadata, TransactionState
from barnabas.broker.coordinator.transactions.verification import Question, VerificationChannel
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import MetadataDelta, MetadataImage
from barnabas.broker.peers.peers import Peers
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import PRODUCER_EPOCH_MAX
from barnabas.loggers import logger
from barnabas.protocol.internal_topics import TRANSACTION_STATE_TOPIC
from barnabas.storage.checkpoints import TopicPartition

log = logger("kafka.coordinator.transaction")

COMPLETE_RETRY_MS = 100  # pause after a completion that could not be appended

A = TypeVar("A")


class TransactionCoordinator:
    """The transaction coordinator; every broker has one.

    A commit has three steps: PREPARE_*, markers, COMPLETE_*, in the same turn of the loop if nothing has to be waited for, so that the
    client's next request finds the transaction complete. The steps of all transactions of a turn are written together. Markers are sent
    only for committed PREPARE_* records; a prepared transaction is completed by its coordinator, however long that takes.

    A method with `done` never raises: `done` gets the result or the error, once, maybe before the method returns.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        *,
        current: CurrentImage,
        peers: Peers,
        replicas: Replicas,
        slices: Slices,
        marker_writer: MarkerWriter,
        allocate_producer_ids: Callable[[Done[int]], None],
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._node_id = config.node_id
        self._current = current
        self.host: ShardHost[TransactionShard] = ShardHost(
            TRANSACTION_STATE_TOPIC,
            reactor,
            replicas,
            self._make_shard,
            lambda: current.image.partition_count(TRANSACTION_STATE_TOPIC),
            slices,
        )
        self._gateway = BrokerGateway(reactor, config, current, peers, marker_writer)
        self.markers = MarkerChannel(self._gateway, self._complete)
        self.verifications = VerificationChannel(
            self._gateway,
            retry_ms=partial(config.get_int, "add.partitions.to.txn.retry.backoff.max.ms"),
            backoff_ms=partial(config.get_int, "add.partitions.to.txn.retry.backoff.ms"),
        )
        self.producer_ids = ProducerIds(allocate_producer_ids)
        self.held = HeldRequests(reactor.soon, reactor.call_later)
        self.counts = AnswerCounts()
        self._timeouts = TransactionTimeouts(reactor, self.host, self.producer_ids, lambda: self.transaction_version)
        self._expiry = TransactionalIdExpiry(reactor, config, self.host)
        self._stopped = False

    # --- start and stop -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._expiry.start()

    def stop(self) -> None:
        """Drops the shards; the next coordinators complete prepared transactions."""
        self._stopped = True
        self._timeouts.stop()
        self._expiry.stop()
        log.info("Transaction coordinator stops: concurrent_transactions_answers=%d", self.counts.concurrent)
        self.host.close()

    def expire_ids(self) -> int:
        """Deletes at most one batch of expired transactional ids now; returns their number."""
        return self._expiry.expire_batch()

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        self.host.on_elected(partition, leader_epoch)

    def on_resigned(self, partition: int) -> None:
        self.host.on_resigned(partition)

    def on_image(self, _former: MetadataImage, _image: MetadataImage, delta: MetadataDelta) -> None:
        """Repeats requests to former leaders of partitions at their new leaders."""
        if delta.partitions or delta.deleted:
            self.markers.on_leaders_moved()
            self.verifications.on_leaders_moved()

    def _make_shard(self, partition: int, leader_epoch: int) -> TransactionShard:
        return TransactionShard(partition, leader_epoch, self, self._record_version)

    @property
    def transaction_version(self) -> int:
        return self._current.image.features.get("transaction.version", 0)

    def _record_version(self) -> int:
        return 1 if self.transaction_version >= 1 else 0

    # --- ShardOwner ---------------------------------------------------------------------------------------------------

    def on_shard_active(self, shard: TransactionShard) -> None:
        clock = self._reactor.client_time.clock
        shard.restart_deadlines(clock.now_ms(), clock.monotonic_ms())
        for prepared in shard.prepared():
            self.markers.add(shard.partition, shard.coordinator_epoch, prepared)
        deadline_ms = shard.next_deadline_ms()
        if deadline_ms is not None:
            self._timeouts.set_deadline(deadline_ms)

    def on_transition_committed(self, shard: TransactionShard, metadata: TransactionMetadata) -> None:
        state = metadata.state
        if metadata.is_prepared:
            self.markers.add(shard.partition, shard.coordinator_epoch, metadata)
        elif state is TransactionState.ONGOING and not metadata.is_two_phase:
            self._timeouts.set_deadline(metadata.started_monotonic_ms + metadata.timeout_ms)
        else:
            self.held.release(metadata.transactional_id)

    def on_shard_resigned(self, shard: TransactionShard) -> None:
        self.markers.drop(shard.partition)
        self.held.release_partition(shard.partition)

    # --- requests -----------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        done: Done[TransactionAnswer],
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> None:
        """A new id for an idempotent producer, or the next epoch of a transactional producer.

        `expected` is the identity of a producer that recovers from an error (KIP-360), None for a new one. KIP-939: transactions of a
        `two_phase` producer have no timeout; with `keep_prepared` an ongoing transaction is handed over, not aborted, and is `kept` in the
        answer. `done` gets the identity, or INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS (the former transaction
        is being ended), PRODUCER_FENCED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED (two-phase commit is disabled), UNSUPPORTED_VERSION, or
        those of `ShardHost.shard`.
        """
        try:
            if transactional_id is None:
                if keep_prepared or two_phase:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, "two-phase commit needs a transactional id")
                # Younger than every topic, so that a partition notices if the producer's first batch is missing.
                youngest = self._current.image.youngest_topic
                lowest = 0 if youngest is None else youngest.first_producer_id
                self.producer_ids.when_available(partial(self._answer_new_producer_id, done), lowest=lowest)
                return
            timeout_ms = self._checked_timeout(transactional_id, timeout_ms, two_phase, keep_prepared)
        except BrokerError as error:
            done(error)
            return
        self.held.supersede(transactional_id)

        def decide(shard: TransactionShard, now_ms: int) -> Decision[TransactionAnswer, TransactionRecord]:
            return shard.init_producer_id(
                transactional_id,
                timeout_ms,
                expected,
                self.producer_ids.take,
                self.transaction_version,
                now_ms,
                keep_prepared=keep_prepared,
            )

        def decided(outcome: TransactionAnswer | BrokerError) -> None:
            if not isinstance(outcome, BrokerError) and outcome.prepared is not None:
                outcome = BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)  # an ongoing transaction is aborted first
            self._answer(done, outcome)

        self.producer_ids.when_available(partial(self._write_unless, transactional_id, decide, decided, done))

    def _answer_new_producer_id(self, done: Done[TransactionAnswer], error: BrokerError | None) -> None:
        done(error or TransactionAnswer(ProducerIdAndEpoch(self.producer_ids.take(), 0), None))

    def _checked_timeout(self, transactional_id: str, timeout_ms: int, two_phase: bool, keep_prepared: bool) -> int:
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        if two_phase:
            if not self._config.get_bool("transaction.two.phase.commit.enable"):
                raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            timeout_ms = NO_TIMEOUT_MS
        elif not 0 < timeout_ms <= self._config.get_int("transaction.max.timeout.ms"):
            raise BrokerError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if keep_prepared and self._record_version() < 1:
            text = "to take a prepared transaction over needs transaction.version 1 or above"
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, text)
        return timeout_ms

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        transaction_version: int,
        done: Done[None],
        waiter: Waiter | None = None,
    ) -> None:
        """AddPartitionsToTxn and AddOffsetsToTxn: adds all partitions or none. `transaction_version` is 2 for TV2, else 0.

        `done` gets None, or INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE, or
        the errors of `ShardHost.shard`. With `waiter` the request may wait until the previous transaction is complete (`holding.py`).
        """
        if not transactional_id:
            done(BrokerError(ErrorCode.INVALID_REQUEST))
            return
        monotonic_ms = self._reactor.client_time.clock.monotonic_ms()

        def decide(shard: TransactionShard, now_ms: int) -> Decision[None, TransactionRecord]:
            return shard.add_partitions(
                transactional_id, producer, partitions, transaction_version, now_ms, monotonic_ms
            )

        of_batches = transaction_version == 2 and are_batches(partitions)
        answered = partial(self._answer, done, of_batches=of_batches)

        def decided(outcome: BrokerError | None) -> None:
            if (
                outcome is None
                or waiter is None
                or outcome.code is not ErrorCode.CONCURRENT_TRANSACTIONS
                or not self._hold(transactional_id, waiter, decide, outcome, answered)
            ):
                answered(outcome)

        self._write(transactional_id, decide, decided)

    def _hold(
        self,
        transactional_id: str,
        waiter: Waiter,
        decide: Callable[[TransactionShard, int], Decision[None, TransactionRecord]],
        refusal: BrokerError,
        decided: Done[None],
    ) -> bool:
        """Holds a request if it only waits for the previous transaction; returns whether it is held."""
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

        waiter.on_held(self.held.hold(transactional_id, partition, wait_ms, again, partial(decided, refusal)))
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
        """Verifies that partitions belong to a producer's transaction, before its first append to them (KIP-890).

        Asks the coordinator if that is another broker. `add` adds them to the transaction, as Produce 12 and TxnOffsetCommit 5 do (TV2).
        `done` gets a code for each partition; INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED, which Produce does not have.
        """
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        if transactional_id and self._gateway.coordinator_of(transactional_id) != self._node_id:
            is_gone = waiter.is_gone if waiter is not None else lambda: False
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
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """NONE or TRANSACTION_ABORTABLE for each partition; raises the errors of `add_partitions`."""
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        partition, shard = self.host.shard_for(transactional_id)
        self.host.check_leads(partition)  # the transaction may have ended at another coordinator
        try:
            return shard.verify_partitions(transactional_id, producer, partitions)
        except BrokerError as error:
            self.counts.on_refusal(error, of_batches=are_batches(partitions))
            raise

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        transaction_version: int,
        done: Done[ProducerIdAndEpoch],
    ) -> None:
        """Decides EndTxn. `transaction_version` is 2 for TV2, else 0.

        `done` gets, when the decision is committed, the identity for the next transaction; or INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING,
        PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE, or the errors of `ShardHost.shard`.
        """
        if not transactional_id:
            done(BrokerError(ErrorCode.INVALID_REQUEST))
            return
        self.held.supersede(transactional_id)

        def decide(shard: TransactionShard, now_ms: int) -> Decision[TransactionAnswer, TransactionRecord]:
            return shard.end_transaction(
                transactional_id,
                producer,
                commit=commit,
                transaction_version=transaction_version,
                new_producer_id=self.producer_ids.take,
                now_ms=now_ms,
            )

        def decided(outcome: TransactionAnswer | BrokerError) -> None:
            self._answer(done, outcome if isinstance(outcome, BrokerError) else outcome.identity)

        write = partial(self._write_unless, transactional_id, decide, decided, done)
        if transaction_version >= 2 and producer.producer_epoch >= PRODUCER_EPOCH_MAX:
            self.producer_ids.when_available(write)  # after its last epoch the producer gets a new id
        else:
            write(None)

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """The committed state. Raises BrokerError(INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND), and as `ShardHost.shard`."""
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        _, shard = self.host.shard_for(transactional_id)
        metadata = shard.described(transactional_id)
        if metadata is None:
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return metadata

    def all_transactions(self) -> list[TransactionMetadata]:
        """By partition and age. Raises BrokerError(COORDINATOR_LOAD_IN_PROGRESS) while any partition loads."""
        if self.host.is_loading:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        described = (
            shard.described(transactional_id)
            for _, shard in self.host.active_shards()
            for transactional_id in shard.transactions
        )
        return [metadata for metadata in described if metadata is not None]

    def _write(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard, int], Decision[A, TransactionRecord]],
        done: Done[A],
    ) -> None:
        try:
            partition = self.host.partition_of(transactional_id)
        except BrokerError:
            # Kafka's code while the topic does not exist: it takes the partition count from its configuration.
            done(BrokerError(ErrorCode.NOT_COORDINATOR))
            return
        self.host.write(partition, decide, done)

    def _write_unless(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard, int], Decision[A, TransactionRecord]],
        decided: Done[A],
        refused: Callable[[BrokerError], None],
        error: BrokerError | None,
    ) -> None:
        """Refuses with `error` if no producer id is available."""
        if error is not None:
            refused(error)
        else:
            self._write(transactional_id, decide, decided)

    def _answer(self, done: Done[A], outcome: A | BrokerError, *, of_batches: bool = False) -> None:
        if isinstance(outcome, BrokerError):
            self.counts.on_refusal(outcome, of_batches=of_batches)
        done(outcome)

    # --- completion ---------------------------------------------------------------------------------------------------

    def _complete(self, partition: int, prepared: TransactionMetadata) -> None:
        """Writes COMPLETE_* after all markers are written."""

        def done(outcome: bool | BrokerError) -> None:
            if outcome is True:
                self.counts.on_completed(self._reactor.clock.now_ms() - prepared.updated_ms)
            if not isinstance(outcome, BrokerError) or self._stopped or not self.host.is_here(partition):
                return  # the next coordinator writes the markers again and completes the transaction
            log.info("Transaction is completed later: transaction=%s error=%s", prepared.transactional_id, outcome)
            self._reactor.call_later(COMPLETE_RETRY_MS, lambda: self._complete(partition, prepared))

        self.host.write(partition, lambda shard, now_ms: shard.complete(prepared, now_ms), done)
