"""Producer: public interface over accumulator, sender and transaction state machine."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Self, TypeVar, Unpack

from barnabas.client.committable import committable, group_of
from barnabas.client.errors import (
    ClientClosed,
    IllegalState,
    KafkaError,
    RequestTimedOut,
    SerializationFailed,
    TransactionFailed,
)
from barnabas.client.loop_affinity import LoopBound, bound_to_loop
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.security_arguments import SecurityArguments
from barnabas.client.producer.core.batching import BATCH_OVERHEAD, Accumulator, PartitionQueue, record_size_max
from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.core.sender import Sender
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.client.producer.core.transactions import Transactions
from barnabas.client.producer.delivery import Delivery, divided
from barnabas.client.producer.routing import Routing
from barnabas.client.types import (
    Acks,
    BytesLike,
    CompressionType,
    ConsumerGroupMetadata,
    Headers,
    HeadersToSend,
    OffsetAndMetadata,
    PreparedTransaction,
    RecordMetadata,
    SentKeyT,
    SentValueT,
    TopicPartition,
    TransactionVersion,
)
from barnabas.network_port import Network
from barnabas.ports import Clock, Rng
from barnabas.protocol.record_codec import RECORD_BYTES_MIN, NewRecord
from barnabas.protocol.records import EncodedRecords

log = logging.getLogger("barnabas.client.producer")
_new_tuple = tuple.__new__  # takes a third of the time of a named tuple's own constructor
_running_loop = asyncio.get_running_loop  # called for every record
_BARE_RECORD_SIZE_MAX = record_size_max(None, None, ())
_CLOSE_TIMEOUT_MS = 5_000
_OPEN = (TransactionPhase.IN_TRANSACTION, TransactionPhase.PREPARING, TransactionPhase.ABORTABLE_ERROR)
_ENDING = (TransactionPhase.COMMITTING, TransactionPhase.ABORTING, TransactionPhase.INITIALIZING)


@bound_to_loop("send", "send_and_wait")
class Producer(LoopBound, Generic[SentKeyT, SentValueT]):
    """Sends records to Kafka topics; idempotent by default, transactional with a `transactional_id`.

    Use as `async with Producer(bootstrap_servers="localhost:9092") as producer:` or `await start()` … `await stop()`.
    Names that end in `_ms` are milliseconds, sizes are bytes. Follows KIP-98, KIP-447, KIP-890 and KIP-939.

    Args:
        bootstrap_servers: "host:port" or several, as string or list.
        client_id: sent with every request; appears in the broker's logs and quotas.
        acks: "all" (or −1), 1, or 0.
        enable_idempotence: records are written once and in order despite retries; needs acks="all".
        transactional_id: makes the producer transactional; a newer producer with the same id fences older ones.
        transaction_timeout_ms: the coordinator aborts a transaction that takes longer.
        key_serializer, value_serializer: callables that convert keys and values to bytes; None stays None.
        compression_type: None, "gzip", "snappy", "lz4" or "zstd".
        max_batch_size: bytes at which the batch of a partition is full.
        linger_ms: how long an incomplete batch waits for more records.
        max_request_size: largest request in bytes, and so the largest record.
        max_in_flight_requests_per_connection: 1 to 5.
        request_timeout_ms: time limit of a response; after it the connection is closed.
        delivery_timeout_ms: time limit from `send` to the record's outcome, retries included.
        retry_backoff_ms: first backoff; later ones are a quarter of the time since the first failure, up to 1 s.
        max_block_ms: how long `send` waits for metadata or room in the buffer, and transaction calls for their outcome.
        buffer_memory: bytes of queued records, over all partitions.
        metadata_max_age_ms: age at which metadata is refreshed.
        transaction_version: 1 or 2 forces the transaction protocol; None uses the finalized one.
        two_phase_commit: transactions have no timeout; another system decides their outcome (KIP-939; `prepare`,
            `complete`).
        keep_prepared: with `two_phase_commit`: takes over the open transaction of an earlier producer with this
            transactional_id as `prepared`, instead of aborting it. It must be completed before anything else.
        clock, rng, network: the ports; the real ones by default.
        security: the settings of TLS and SASL: `security_protocol`, `ssl_…`, `sasl_…`; see SecurityConfig.

    Raises:
        IllegalState: a setting is invalid, or two settings exclude each other.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "barnabas-producer",
        acks: Acks = "all",
        enable_idempotence: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        key_serializer: Callable[[SentKeyT], BytesLike | None] | None = None,
        value_serializer: Callable[[SentValueT], BytesLike | None] | None = None,
        compression_type: CompressionType | None = None,
        max_batch_size: int = 65_536,
        linger_ms: int = 0,
        max_request_size: int = 1_048_576,
        max_in_flight_requests_per_connection: int = 5,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        retry_backoff_ms: int = 20,
        max_block_ms: int = 60_000,
        buffer_memory: int = 32 * 1024 * 1024,
        metadata_max_age_ms: int = 300_000,
        transaction_version: TransactionVersion | None = None,
        two_phase_commit: bool = False,
        keep_prepared: bool = False,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        # The settings among the arguments have the names of the fields of ProducerConfig (tested).
        self._config = config = ProducerConfig.from_arguments(locals())
        self.transactional_id = config.transactional_id
        self.two_phase_commit = config.two_phase_commit
        self._key_serializer = config.key_serializer
        self._value_serializer = config.value_serializer
        self._max_request_size = config.max_request_size
        cluster = self._cluster = NetworkClient(config, clock, rng, network, auto_create_topics=True)
        self._home = cluster.home
        self._clock = cluster.clock
        self._accumulator = Accumulator(
            batch_size=config.max_batch_size,
            linger_ms=config.linger_ms,
            delivery_timeout_ms=config.delivery_timeout_ms,
            transactional=config.transactional_id is not None,
        )
        self._txn = Transactions(
            config.transactional_id,
            cluster.rng,
            timeout_ms=config.transaction_timeout_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            two_phase=config.two_phase_commit,
            keep_prepared=config.keep_prepared,
        )
        sender = Sender(config, self._accumulator, self._txn, cluster.rng)
        self._delivery = Delivery(cluster, self._accumulator, sender, self._txn)
        self._routing = Routing(cluster, self._accumulator, self._delivery, config)
        self._started = False
        # the caller of the last commit was cancelled, and its outcome was not returned yet
        self._commit_abandoned = False

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects. A transactional producer also gets its producer id, which fences older ones.

        Raises KafkaError without a reachable broker, ProducerFailed or AuthorizationFailed if the coordinator rejects
        it.
        """
        if self._delivery.closed:
            raise ClientClosed("the producer was closed; create a new one")
        if self._started:
            return
        self._started = True
        self._delivery.start()
        try:
            await self._cluster.start()
            if self._config.idempotent:
                self._initialize()
                self._delivery.wake()
            if self.transactional_id is not None:
                while self._txn.state is TransactionPhase.INITIALIZING:
                    await self._delivery.progress()
                self._txn.check_usable()
        except BaseException:
            await self._delivery.close()
            raise

    async def stop(self, timeout_ms: int | None = None) -> None:
        """Sends queued records, waits for a commit in progress, aborts an unprepared transaction, closes connections.

        Args:
            timeout_ms: time limit for sending (default: the records' own). The remaining records fail with
                ClientClosed.

        Raises:
            SendFailed: as of `flush`, at the end, without transactions. An exception in progress gets a note instead.
        """
        await self._close(timeout_ms, sys.exception())

    async def _close(self, timeout_ms: int | None, handled: BaseException | None) -> None:
        if self._delivery.closed:
            return
        abandoned = self._home.is_closed("Producer.stop")
        try:
            if abandoned:
                self._delivery.abandon()
            elif self._started and self._txn.state is not TransactionPhase.FATAL_ERROR:
                await self._end_transaction()
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self._delivery.outcomes()
        except (TimeoutError, KafkaError) as error:
            log.warning("producer closed with records unsent or a transaction open: %s", error)
        finally:
            try:
                await self._delivery.close()
            finally:  # also after a cancellation, which the caller gets
                failed = self._delivery.unclaimed.take()
        if failed is not None and self.transactional_id is None:
            if handled is None:
                raise failed from failed.errors[0]
            handled.add_note(f"When the producer was closed: {failed}")

    close = stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._close(None, error)

    # -- sending -------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: SentValueT | None = None,
        key: SentKeyT | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersToSend | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queues a record and returns a future of its position in the log.

        Waits only for metadata of a new topic and room in the buffer. A cancelled `send` has queued nothing; a
        cancelled future withdraws nothing. It fails with a KafkaError; `flush` or `stop` raises it if no caller waits.

        Args:
            partition: None chooses by the key (murmur2, as Java's producer), or a sticky partition without a key.
            timestamp_ms: milliseconds since the Unix epoch; None means now.
            headers: a dict, or pairs if a name occurs twice; values are bytes, None, or str (sent as UTF-8).

        Raises:
            SerializationFailed, RecordTooLarge: this record cannot be sent; the producer can send others.
            BufferExhausted: no metadata or no room within `max_block_ms`.
            IllegalState, TransactionFailed: no transaction is open, or it must be aborted; IllegalState also on another
                event loop.
            ProducerFailed, ProducerFenced, ClientClosed: the producer is no longer usable.
        """
        loop = _running_loop()
        if loop is not self._delivery.loop:
            self._check_open()
        key_data: Any = key
        data: Any = value
        if self._value_serializer is not None or self._key_serializer is not None:
            key_data = _serialized("key", self._key_serializer, key, topic)
            data = _serialized("value", self._value_serializer, value, topic)
        accumulator = self._accumulator
        if accumulator.full_batches:
            accumulator.full_batches = 0
            await asyncio.sleep(0)  # lets the delivery send batches and receive responses
        route = self._routing.routes.get(topic) if type(topic) is str else None
        if route is None or accumulator.bytes_held > self._routing.buffer_memory:
            route = await self._routing.open(topic)
        size, pairs = _BARE_RECORD_SIZE_MAX, _checked_headers(headers, topic) if headers else ()
        if key_data is not None:
            key_data = key_data if type(key_data) is bytes else _as_bytes(key_data, "key", topic)
            size += len(key_data)
        if data is not None:
            data = data if type(data) is bytes else _as_bytes(data, "value", topic)
            size += len(data)
        if pairs:
            size = record_size_max(key_data, data, pairs)
        timestamp_ms = self._clock.now_ms() if timestamp_ms is None else _checked_timestamp(timestamp_ms, topic)
        if size + BATCH_OVERHEAD > self._max_request_size:
            raise self._config.too_large("record", size, topic)
        queue = route.choose(key_data, size) if partition is None else route.queue(partition)
        if self._txn.transactional_id is not None or self._txn.state is TransactionPhase.FATAL_ERROR:
            self._add_to_transaction(queue)
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        record = _new_tuple(NewRecord, (key_data, data, timestamp_ms, pairs))
        if accumulator.append(queue, record, size, future, self._clock.monotonic_ms):
            self._delivery.wake()
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: SentValueT | None = None,
        key: SentKeyT | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersToSend | None = None,
    ) -> RecordMetadata:
        """Sends a record and waits until it is acknowledged. If the wait is cancelled, the record may still be written.

        Raises KafkaError as `send`, or the error of its future, such as DeliveryTimedOut.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_batch(
        self, topic: str, partition: int | None, records: EncodedRecords, *, divisible: bool = False
    ) -> asyncio.Future[RecordMetadata]:
        """Queues caller-encoded records as one batch that is sent unchanged; otherwise as `send`.

        The future's result has the offset of the first record; the others follow it. `compression_type` applies to the
        batch.

        Args:
            partition: None chooses a sticky partition, as for records without a key.
            records: neither checked (a broker or consumer rejects malformed records) nor copied: do not change the
                buffer before the future is done.
            divisible: the producer divides the batch if it exceeds the topic's limit. The future then fails with
                PartlyWritten if single records exceed it; the others are written.

        Raises:
            RecordTooLarge: the batch exceeds `max_request_size`.
            SerializationFailed: these bytes cannot hold that many records.
            KafkaError: as of `send`.
        """
        self._check_open()
        accumulator = self._accumulator
        if accumulator.full_batches:
            accumulator.full_batches = 0
            await asyncio.sleep(0)
        route = self._routing.routes.get(topic)
        if route is None or accumulator.bytes_held > self._routing.buffer_memory:
            route = await self._routing.open(topic)
        size = len(records.data)
        if not 1 <= records.record_count <= size // RECORD_BYTES_MIN:
            raise SerializationFailed(f"{records.record_count} records cannot be in {size} bytes", topic=topic)
        if size + BATCH_OVERHEAD > self._max_request_size:
            raise self._config.too_large("batch", size, topic)
        queue = route.choose(None, size) if partition is None else route.queue(partition)
        self._add_to_transaction(queue)
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        divide = partial(divided, self._delivery.unclaimed.fail, future) if divisible else None
        accumulator.append_packed(queue, records, future, self._clock.monotonic_ms(), divide)
        self._delivery.wake()
        return future

    async def flush(self) -> None:
        """Waits for the outcomes of all records sent so far, and raises each failure once that no caller has retrieved.

        A failure is retrieved if a caller waited for the record's future, or has read its exception since; not by a
        cancelled future. The futures keep their exceptions.

        Raises:
            SendFailed: records were not acknowledged; its `errors` say why. In a transaction, abort it.
        """
        self._check_open()
        await self._delivery.outcomes()
        failed = self._delivery.unclaimed.take()
        if failed is not None:
            failed.txn_requires_abort = self._txn.state is TransactionPhase.ABORTABLE_ERROR
            raise failed from failed.errors[0]

    @property
    def config(self) -> ProducerConfig:
        """The settings."""
        return self._config

    async def partitions_for(self, topic: str) -> set[int]:
        """Returns the partitions of a topic, and may create it. Raises BufferExhausted without metadata in `max_block_ms`."""
        self._check_open()
        if topic not in self._routing.routes:
            await self._routing.open(topic)
        info = self._cluster.metadata.topics.get(topic)
        return {p.partition for p in info.partitions} if info is not None else set()

    # -- transactions --------------------------------------------------------------------------------------------------

    @property
    def transaction_state(self) -> TransactionPhase:
        """State of the producer: after a cancelled call, whether a transaction is open, ending, or must be aborted."""
        return self._txn.state

    def transaction(self) -> Transaction[Self]:
        """`async with producer.transaction():` commits at the end of the block, and aborts if an exception leaves it."""
        return Transaction(self)

    async def begin_transaction(self) -> None:
        """Opens a transaction. Waits first for the end of a commit or abort whose caller was cancelled.

        Raises:
            IllegalState: no transactional_id, or a transaction is open, or two_phase_commit without transaction.version
                2.
            ProducerFailed, ProducerFenced: the producer is no longer usable.
            RequestTimedOut: the previous one has not ended within `max_block_ms`.
        """
        self._check_transactional()
        await self._left(_ENDING, self._config.max_block_ms, "the end of the previous transaction was not answered")
        version = self._config.transaction_version or await self._cluster.learn_transaction_version()
        if self.two_phase_commit and version < 2:
            raise IllegalState("two_phase_commit needs a cluster that has finalized transaction.version 2")
        self._txn.begin(version)
        self._commit_abandoned = False
        self._delivery.unclaimed.clear()

    @property
    def prepared(self) -> PreparedTransaction | None:
        """The prepared transaction, by `prepare` or kept from an earlier producer, until it is completed."""
        return self._txn.prepared

    async def prepare(self) -> PreparedTransaction:
        """Phase one of two (KIP-939): sends queued records. Every record and offset of the transaction is then safe.

        The transaction outlives the producer and the brokers until `complete`, `commit_transaction` or
        `abort_transaction`, and nothing can be added to it. Store the result together with the decision. A cancelled
        call may be repeated.

        Raises:
            TransactionFailed: a record or offset could not be written; abort the transaction.
            IllegalState: the producer has no two_phase_commit, or no transaction is open.
            ProducerFenced, ProducerFailed: the producer is no longer usable; the transaction is unchanged.
        """
        self._check_transactional()
        if not self.two_phase_commit:
            raise IllegalState(
                "prepare needs two_phase_commit=True: a transaction with a timeout cannot wait for a decision"
            )
        return await self._prepare()

    async def _prepare(self) -> PreparedTransaction:
        self._txn.prepare()
        self._delivery.wake()
        while self._txn.state is TransactionPhase.PREPARING:
            await self._delivery.progress()
        self._txn.check_usable()
        if self._txn.prepared is None:
            self._txn.check_sendable()
            raise IllegalState(f"the transaction was ended by another call: the producer is {self._txn.state.value}")
        return self._txn.prepared

    async def complete(self, decided: PreparedTransaction | None) -> bool:
        """Phase two (KIP-939): commits the prepared transaction if it is the decided one, else aborts it.

        Args:
            decided: the last stored decision of the other participant, or None.

        Returns:
            Whether this call has committed. False without a prepared transaction: it was completed before.

        Raises:
            ProducerFenced, ProducerFailed: the producer is no longer usable. Start another with keep_prepared and
                repeat the call.
        """
        self._check_transactional()
        if self._txn.prepared is None:
            self._txn.check_usable()
            return False
        if decided == self._txn.prepared:
            await self._commit(self._config.max_block_ms)
            return True
        await self._abort(self._config.max_block_ms)
        return False

    async def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Sends queued records and commits. A cancelled commit continues; another call waits for its outcome.

        Raises:
            RequestTimedOut: not within `timeout_ms` (default `max_block_ms`). The commit continues; another call waits
                for it.
            TransactionFailed: a record or offset could not be written; abort the transaction.
            ProducerFenced, ProducerFailed: the producer is no longer usable. The text says whether the outcome is
                unknown.
        """
        self._check_transactional()
        await self._commit(self._config.max_block_ms if timeout_ms is None else timeout_ms)

    async def abort_transaction(self, timeout_ms: int | None = None) -> None:
        """Drops unsent records and aborts. A cancelled abort continues.

        Raises:
            RequestTimedOut: not within `timeout_ms` (default `max_block_ms`). The abort continues; another call waits for it.
            IllegalState: no transaction is open.
            ProducerFenced, ProducerFailed: the producer is no longer usable.
        """
        self._check_transactional()
        await self._abort(self._config.max_block_ms if timeout_ms is None else timeout_ms)
        self._delivery.unclaimed.clear()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commits a consumer's offsets in the open transaction (KIP-447). Raises TransactionFailed if rejected.

        Args:
            offsets: the next offset to read, by partition.
            group_metadata: `consumer.group_metadata()`, which fences a member without its partitions; a group id does
                not.
        """
        self._check_transactional()
        job = self._txn.add_offsets(committable(offsets), group_of(group_metadata))
        self._delivery.wake()
        while not job.done and job.error is None:
            await self._delivery.progress()
        if job.error is not None:
            self._txn.check_usable()
            raise TransactionFailed(f"the offsets were not committed: {job.error}", code=job.error.code) from job.error

    send_offsets_to_transaction = send_offsets

    # A cancelled or timed-out call changes nothing: the transition continues, and the same call waits for its outcome.

    async def _commit(self, timeout_ms: int | None) -> None:
        ended_or_ending = self._txn.state in (TransactionPhase.READY, TransactionPhase.COMMITTING)
        if not (self._commit_abandoned and ended_or_ending):
            self._use_present_version()
            self._txn.commit()
        self._commit_abandoned = True
        self._delivery.wake()
        await self._left(
            (TransactionPhase.COMMITTING,),
            timeout_ms,
            "the commit was not answered; it goes on, and commit_transaction waits for it again",
        )
        self._commit_abandoned = False
        self._txn.check_usable()
        if self._txn.state is TransactionPhase.ABORTABLE_ERROR:
            self._txn.check_sendable()

    async def _abort(self, timeout_ms: int | None) -> None:
        self._use_present_version()
        self._txn.abort()
        self._delivery.wake()
        await self._left(
            (TransactionPhase.ABORTING, TransactionPhase.INITIALIZING),
            timeout_ms,
            "the abort was not answered; it goes on, and abort_transaction waits for it again",
        )
        self._txn.check_usable()

    async def _end_transaction(self) -> None:
        """Aborts an unprepared transaction, waits ≤ 5 s for a commit in progress. Raises TimeoutError, KafkaError."""
        state = self._txn.state
        async with asyncio.timeout(_CLOSE_TIMEOUT_MS / 1000):
            if state is TransactionPhase.COMMITTING:
                await self._commit(None)
            elif state in _OPEN:
                await self._abort(None)

    async def _left(self, states: Sequence[TransactionPhase], timeout_ms: int | None, what: str) -> None:
        """Waits until the producer has left these states. Raises RequestTimedOut with `what`."""
        deadline_ms = None if timeout_ms is None else self._cluster.clock.monotonic_ms() + timeout_ms
        while self._txn.state in states:
            if not await self._delivery.progress(deadline_ms) and self._txn.state in states:
                raise RequestTimedOut(f"not within {timeout_ms} ms: {what}")

    def _use_present_version(self) -> None:
        """Another producer began a kept transaction: its end uses the finalized version."""
        if self._txn.state is TransactionPhase.PREPARED and self._txn.kept:
            self._txn.version = self._config.transaction_version or self._cluster.transaction_version()

    # -- internal ------------------------------------------------------------------------------------------------------

    def _initialize(self) -> None:
        self._txn.initialize()

    def _check_open(self) -> None:
        self._home.check("Producer.send")  # of `send`, which has no decorator
        if self._delivery.loop is None:
            why = "closed" if self._delivery.closed else "not started: await start(), or use it in 'async with'"
            raise ClientClosed(f"the producer is {why}")

    def _unfinished(self) -> str:
        return ", and records without an outcome may be lost" if self._accumulator.incomplete else ""

    def _check_transactional(self) -> None:
        self._check_open()
        if self.transactional_id is None:
            raise IllegalState("this producer has no transactional_id, so it has no transactions")

    def _add_to_transaction(self, queue: PartitionQueue) -> None:
        txn = self._txn
        if txn.transactional_id is not None:
            txn.check_sendable()
            txn.add_partition(queue.tp)
        elif txn.state is TransactionPhase.FATAL_ERROR:
            txn.check_usable()


P = TypeVar("P", bound=Producer[Any, Any])


class Transaction(Generic[P]):
    """One transaction: see `Producer.transaction`."""

    def __init__(self, producer: P) -> None:
        self._producer = producer

    async def __aenter__(self) -> P:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        producer = self._producer
        if error is None:
            try:
                await producer.commit_transaction()
            except TransactionFailed:
                await producer.abort_transaction()
                raise
            return
        try:
            await producer.abort_transaction()
        except KafkaError as failure:
            log.warning("the transaction was left by %r and could not be aborted: %s", error, failure)


def _as_bytes(data: Any, what: str, topic: str) -> bytes:
    """Copies a mutable buffer, because the record is sent later."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise SerializationFailed(
        f"a {what} must be bytes or None, not {type(data).__name__}; or set {what}_serializer", topic=topic
    )


def _checked_headers(headers: HeadersToSend, topic: str) -> Headers:
    """Headers as pairs with bytes values, from a dict or pairs with bytes, str or None. Raises SerializationFailed."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        checked = [(name, _header_value(data)) for name, data in pairs]
        if all(isinstance(name, str) for name, _ in checked):
            return checked
    except (TypeError, ValueError):
        pass
    raise SerializationFailed(
        f"headers must be a dict or pairs, of str and bytes, str or None; not {headers!r}", topic=topic
    )


def _header_value(data: Any) -> bytes | None:
    if data is None or type(data) is bytes:
        return data
    return data.encode() if isinstance(data, str) else bytes(memoryview(data))


def _checked_timestamp(timestamp_ms: Any, topic: str) -> int:
    if type(timestamp_ms) is not int:
        raise SerializationFailed(f"timestamp_ms must be an int, not {timestamp_ms!r}", topic=topic)
    if not 0 <= timestamp_ms < 1 << 63:  # Java's producer refuses negative ones, too
        raise SerializationFailed(f"timestamp_ms must be from 0 to {(1 << 63) - 1}, not {timestamp_ms}", topic=topic)
    return timestamp_ms


def _serialized(what: str, serializer: Any, data: Any, topic: str) -> Any:
    """Serializes; None stays null. Raises SerializationFailed if the serializer raised or did not return bytes."""
    if serializer is None or data is None:
        return data
    try:
        result = serializer(data)
    except Exception as error:
        raise SerializationFailed(f"the {what} serializer raised {error!r}", topic=topic) from error
    if result is None or isinstance(result, bytes | bytearray | memoryview):
        return result
    raise SerializationFailed(f"{what}_serializer returned {type(result).__name__}; it must return bytes", topic=topic)
