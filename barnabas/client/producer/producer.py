"""Producer: what callers see of accumulator, sender and transaction machine.

Driven by: `send`, `flush`, the transaction calls.
Emits: records into the accumulator, changes of the transaction's state; `delivery` carries both to the brokers.

Callers only change the cores and wake the delivery, so a cancelled one leaves nothing half done: a cancelled `send` either has queued its record or has not (it has no await after the queueing), a
cancelled flush, commit or abort goes on by itself and may be awaited again.
Follows KIP-98, KIP-447, KIP-480, KIP-794, KIP-890, KIP-91 (delivery timeout), KIP-939 (two-phase commit).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from barnabas.client.errors import (
    ClientClosed,
    IllegalState,
    KafkaError,
    RecordTooLarge,
    SerializationFailed,
    TransactionFailed,
)
from barnabas.client.net.cluster import Cluster
from barnabas.client.producer.batching import BATCH_OVERHEAD, Accumulator, PartitionQueue, record_size_max
from barnabas.client.producer.delivery import Delivery
from barnabas.client.producer.outgoing_record import as_bytes, checked_headers, codec_of
from barnabas.client.producer.routing import Routing
from barnabas.client.producer.sender import Sender, SenderConfig
from barnabas.client.producer.transaction import Transaction
from barnabas.client.producer.transaction_state import TransactionState
from barnabas.client.producer.transactions import Transactions
from barnabas.client.types import (
    ConsumerGroupMetadata,
    Headers,
    OffsetAndMetadata,
    PreparedTransaction,
    RecordMetadata,
    TopicPartition,
)
from barnabas.ports import Clock, Network, Rng
from barnabas.protocol.record_codec import RECORD_BYTES_MIN
from barnabas.protocol.records import EncodedRecords, NewRecord

__all__ = ["Producer"]

log = logging.getLogger("barnabas.client.producer.producer")

Serializer = Callable[[Any], bytes | None]

_new_tuple = tuple.__new__  # of a named tuple: a third of the time that its own constructor takes

_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}

_CLOSE_ABORT_TIMEOUT_MS = 5_000  # what a close with an open transaction gives its abort


class Producer:
    """Sends records to Kafka topics; idempotent by default, transactional with a `transactional_id`.

    Use as `async with Producer(bootstrap_servers="localhost:9092") as producer:` or `await start()` … `await stop()`.

    Args:
        bootstrap_servers: "host:port" or several, as string or list.
        client_id: sent with every request, seen in the broker's logs and quotas.
        acks: "all" (or −1), 1, or 0.
        enable_idempotence: records are written once and in order whatever is retried; needs acks="all".
        transactional_id: makes the producer transactional; a newer producer with the same id fences older ones.
        transaction_timeout_ms: the coordinator aborts a transaction that lasts longer.
        key_serializer, value_serializer: callables that make bytes (or None) of keys and values.
        compression_type: None, "gzip", "snappy", "lz4" or "zstd".
        max_batch_size: bytes of a batch that is full, for each partition.
        linger_ms: how long a batch that is not full waits for more records.
        max_request_size: bytes of a request, and so of a record, at most.
        max_in_flight_requests_per_connection: 1 to 5.
        request_timeout_ms: how long an answer may take before the connection is given up.
        delivery_timeout_ms: from `send` to the record's last chance, retries included.
        retry_backoff_ms: first pause before a retry; a quarter of the time that the trouble lasts later, up to a second.
        max_block_ms: how long `send` waits for metadata or for room in the buffer.
        buffer_memory: bytes of records that wait, over all partitions.
        metadata_max_age_ms: metadata older than this is refreshed unasked.
        transaction_version: 1 or 2 forces the transaction protocol; None takes what the cluster has finalized.
        two_phase_commit: transactions have no timeout: somebody else decides their outcome (KIP-939; `prepare`, `complete`).
        keep_prepared: with `two_phase_commit`: a transaction that an earlier producer of this transactional_id has left open is
            taken over instead of aborted; it is then `prepared`, and to be completed first of all.
        clock, rng, network: the ports; the real ones by default.

    Raises:
        IllegalState: settings that exclude each other.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "barnabas-producer",
        acks: int | str = "all",
        enable_idempotence: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        compression_type: str | None = None,
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
        transaction_version: int | None = None,
        two_phase_commit: bool = False,
        keep_prepared: bool = False,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
    ) -> None:
        if acks not in _ACKS:
            raise IllegalState(f"acks={acks!r} is none of 'all', -1, 0, 1")
        idempotent = _ACKS[acks] == -1 if enable_idempotence is None else enable_idempotence
        if idempotent and _ACKS[acks] != -1:
            raise IllegalState("enable_idempotence needs acks='all'")
        if transactional_id is not None and not idempotent:
            raise IllegalState("a transactional_id needs enable_idempotence and acks='all'")
        if not 1 <= max_in_flight_requests_per_connection <= 5:
            raise IllegalState("max_in_flight_requests_per_connection must be 1 to 5: a broker remembers five batches")
        if transaction_version not in (None, 1, 2):
            raise IllegalState(f"transaction_version={transaction_version!r} is none of None, 1, 2")
        if two_phase_commit and transactional_id is None:
            raise IllegalState("two_phase_commit needs a transactional_id")
        if two_phase_commit and transaction_version == 1:
            raise IllegalState(
                "two_phase_commit needs transaction_version 2: before it, transactions may look the same"
            )
        if keep_prepared and not two_phase_commit:
            raise IllegalState("keep_prepared needs two_phase_commit: else what it keeps would have a timeout")
        self.transactional_id = transactional_id
        self.two_phase_commit = two_phase_commit
        self._idempotent = idempotent
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._max_request_size = max_request_size
        self._forced_version = transaction_version
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            auto_create_topics=True,
            clock=clock,
            rng=rng,
            network=network,
        )
        self._clock = self._cluster.clock
        self._accumulator = Accumulator(
            batch_size=max_batch_size,
            linger_ms=linger_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            transactional=transactional_id is not None,
        )
        self._txn = Transactions(
            transactional_id,
            self._cluster.rng,
            timeout_ms=transaction_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            two_phase=two_phase_commit,
            keep_prepared=keep_prepared,
        )
        self._sender = Sender(
            SenderConfig(
                acks=_ACKS[acks],
                compression=codec_of(compression_type),
                idempotent=idempotent,
                max_request_size=max_request_size,
                max_in_flight=max_in_flight_requests_per_connection,
                request_timeout_ms=request_timeout_ms,
                retry_backoff_ms=retry_backoff_ms,
            ),
            self._accumulator,
            self._txn,
            self._cluster.rng,
        )
        self._delivery = Delivery(self._cluster, self._accumulator, self._sender, self._txn)
        self._routing = Routing(
            self._cluster,
            self._accumulator,
            self._delivery,
            batch_size=max_batch_size,
            max_block_ms=max_block_ms,
            buffer_memory=buffer_memory,
        )
        self._started = False
        self._unseen_commit = False  # a commit whose caller was cancelled has ended since, or will
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects; a transactional producer also gets its producer id, which fences older ones with its transactional id.

        Raises:
            KafkaError: no broker can be reached, or the coordinator refuses (ProducerFailed, AuthorizationFailed).
        """
        if self._delivery.closed:
            raise ClientClosed("the producer was closed; make a new one")
        if self._started:
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._delivery.start()
        try:
            await self._cluster.start()
            if self._idempotent:
                self._txn.initialize()
                self._delivery.wake()
            if self.transactional_id is not None:
                while self._txn.state is TransactionState.INITIALIZING:
                    await self._delivery.progress()
                self._txn.check_usable()
        except BaseException:
            await self._delivery.close()
            raise

    async def stop(self, timeout_ms: int | None = None) -> None:
        """Sends what waits, ends what is being committed, aborts what is open and not prepared, closes the connections.

        Args:
            timeout_ms: how long sending may take (default: as long as the records' own delivery timeout); records that are
                left then fail with ClientClosed.
        """
        if self._delivery.closed:
            return
        try:
            if self._started and self._txn.state is not TransactionState.FATAL_ERROR:
                if self._txn.state in (
                    TransactionState.IN_TRANSACTION,
                    TransactionState.PREPARING,
                    TransactionState.ABORTABLE_ERROR,
                ):
                    async with asyncio.timeout(_CLOSE_ABORT_TIMEOUT_MS / 1000):
                        await self.abort_transaction()
                elif self._txn.state is TransactionState.COMMITTING:
                    async with asyncio.timeout(_CLOSE_ABORT_TIMEOUT_MS / 1000):
                        await self.commit_transaction()
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self.flush()
        except (TimeoutError, KafkaError) as error:
            log.warning("producer closed with records unsent or a transaction open: %s", error)
        finally:
            await self._delivery.close()

    close = stop

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queues a record and returns a future of where it was written.

        Waits only for metadata of a topic not known yet and for room in the buffer. A cancelled `send` has queued nothing.
        The future fails with a KafkaError; cancelling the future does not take the record back.

        Args:
            partition: None leaves the choice to the key (murmur2, as Java's), or without one to a sticky partition.
            timestamp_ms: milliseconds since the Unix epoch; now where None.
            headers: pairs of name and bytes.

        Raises:
            SerializationFailed, RecordTooLarge: this record cannot be sent; the producer goes on.
            BufferExhausted: no metadata or no room within `max_block_ms`.
            IllegalState, TransactionFailed: no transaction is open, or it can only be aborted.
            ProducerFailed, ProducerFenced, ClientClosed: the producer cannot be used any more.
        """
        if not self._started or self._delivery.closed:
            self._check_open()
        if self._value_serializer is not None or self._key_serializer is not None:
            key = self._serialize("key", self._key_serializer, key, topic)
            value = self._serialize("value", self._value_serializer, value, topic)
        accumulator = self._accumulator
        if accumulator.full_batches:
            accumulator.full_batches = 0
            await asyncio.sleep(0)  # let batches leave and answers come in while the caller goes on sending
        route = self._routing.routes.get(topic)
        if route is None or accumulator.bytes_held > self._routing.buffer_memory:
            route = await self._routing.open(topic)
        size = 31
        if key is not None:
            if type(key) is not bytes:
                key = as_bytes(key, "key", topic)
            size += len(key)
        if value is not None:
            if type(value) is not bytes:
                value = as_bytes(value, "value", topic)
            size += len(value)
        if headers:
            headers = checked_headers(headers, topic)
            size = record_size_max(key, value, headers)
        if timestamp_ms is not None and type(timestamp_ms) is not int:
            raise SerializationFailed(f"timestamp_ms must be an int, not {timestamp_ms!r}", topic=topic)
        if size + BATCH_OVERHEAD > self._max_request_size:
            raise RecordTooLarge(
                f"a record of {size} bytes exceeds max_request_size={self._max_request_size}", topic=topic
            )
        queue = route.choose(key, size) if partition is None else route.queue(partition)
        if self._txn.transactional_id is not None or self._txn.state is TransactionState.FATAL_ERROR:
            self._cover(queue)
        clock = self._clock
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()  # type: ignore[union-attr]  # set by start()
        now_ms = clock.now_ms() if timestamp_ms is None else timestamp_ms
        record = _new_tuple(NewRecord, (key, value, now_ms, headers or ()))
        if accumulator.append(queue, record, size, future, clock.monotonic_ms):
            self._delivery.wake()
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """`send`, and waits until the record is acknowledged. Cancelled while waiting, the record may still be written."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_batch(self, topic: str, partition: int, records: EncodedRecords) -> asyncio.Future[RecordMetadata]:
        """Queues records that the caller has encoded as one batch, which leaves as it is; else as `send`.

        The future tells the offset of the first record; the others follow it. The batch is compressed by `compression_type`.

        Args:
            records: not looked into (what is no record there is refused by the broker, or by readers), nor copied: the
                buffer has to stay as it is until the future is done.

        Raises:
            RecordTooLarge: the batch is above `max_request_size`; it is not split, here or when a topic's limit is below that.
            SerializationFailed: a count that cannot be that of these bytes.
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
            raise RecordTooLarge(
                f"a batch of {size} bytes exceeds max_request_size={self._max_request_size}", topic=topic
            )
        queue = route.queue(partition)
        self._cover(queue)
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        accumulator.append_packed(queue, records, future, self._clock.monotonic_ms())
        self._delivery.wake()
        return future

    async def flush(self) -> None:
        """Waits until every record sent before this call has its outcome. Failures are on the records' futures."""
        self._check_open()
        serial = self._accumulator.last_serial
        self._delivery.flushes += 1
        try:
            self._delivery.wake()
            while not self._accumulator.all_done_up_to(serial):
                await self._delivery.progress()
        finally:
            self._delivery.flushes -= 1

    async def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic, created where the broker creates topics by itself."""
        self._check_open()
        if topic not in self._routing.routes:
            await self._routing.open(topic)
        info = self._cluster.metadata.topics.get(topic)
        return {p.partition for p in info.partitions} if info is not None else set()

    # -- transactions --------------------------------------------------------------------------------------------------

    @property
    def transaction_state(self) -> TransactionState:
        """Where the producer stands: after a cancelled call, whether a transaction is open, ending, or to be aborted."""
        return self._txn.state

    def transaction(self) -> Transaction:
        """`async with producer.transaction():` commits at the end of the block and aborts when it is left by an exception."""
        return Transaction(self)

    async def begin_transaction(self) -> None:
        """Opens a transaction. Where a cancelled commit or abort is still under way, waits for its end first.

        Raises:
            IllegalState: no transactional_id, or a transaction is open, or two_phase_commit without transaction.version 2.
            ProducerFailed, ProducerFenced: the producer cannot be used any more.
        """
        self._check_transactional()
        while self._txn.state in (
            TransactionState.COMMITTING,
            TransactionState.ABORTING,
            TransactionState.INITIALIZING,
        ):
            await self._delivery.progress()
        version = self._forced_version or await self._cluster.learn_transaction_version()
        if self._txn.two_phase and version < 2:
            raise IllegalState("two_phase_commit needs a cluster that has finalized transaction.version 2")
        self._txn.begin(version)
        self._unseen_commit = False

    @property
    def prepared(self) -> PreparedTransaction | None:
        """The transaction that is prepared: by `prepare`, or by an earlier producer and kept. None once it is completed."""
        return self._txn.prepared

    async def prepare(self) -> PreparedTransaction:
        """Phase one of two (KIP-939): sends what waits; then every record and offset of the transaction is safe, and it lasts,
        whatever dies, until `complete`, `commit_transaction` or `abort_transaction`. Nothing more can be sent in it.

        Keep what this returns with the decision, in whatever decides. Cancelled, it may be called again.

        Raises:
            TransactionFailed: a record or offset could not be written; abort the transaction.
            IllegalState: not a producer with two_phase_commit, or no transaction is open.
            ProducerFenced, ProducerFailed: the producer cannot be used any more; the transaction is as it was.
        """
        self._check_transactional()
        if not self._txn.two_phase:
            raise IllegalState(
                "prepare needs two_phase_commit=True: a transaction with a timeout cannot wait for a decision"
            )
        return await self._prepare()

    async def _prepare(self) -> PreparedTransaction:
        """`prepare`, whatever the transaction's timeout is."""
        self._txn.prepare()
        self._delivery.wake()
        while self._txn.state is TransactionState.PREPARING:
            await self._delivery.progress()
        self._txn.check_usable()
        if self._txn.prepared is None:
            self._txn.check_sendable()
            raise IllegalState(f"the transaction was ended meanwhile: the producer is {self._txn.state.value}")
        return self._txn.prepared

    async def complete(self, decided: PreparedTransaction | None) -> bool:
        """Phase two: commits the prepared transaction if it is the one that was decided upon, else aborts it. For recovery:
        `decided` is what the other participant has kept of the last decision, None where there is none.

        Returns:
            Whether this call has committed a transaction. False without a prepared one: it has been completed before.

        Raises:
            ProducerFenced, ProducerFailed: the producer cannot be used any more. Start another with keep_prepared and call again.
        """
        self._check_transactional()
        if self._txn.prepared is None:
            self._txn.check_usable()
            return False
        if decided == self._txn.prepared:
            await self.commit_transaction()
            return True
        await self.abort_transaction()
        return False

    async def commit_transaction(self) -> None:
        """Sends what waits and commits. Cancelled, the commit goes on; calling again waits for its outcome.

        Raises:
            TransactionFailed: a record or offset could not be written; abort the transaction.
            ProducerFenced, ProducerFailed: the producer cannot be used any more; whether the transaction was committed is
                unknown only where the text says so.
        """
        self._check_transactional()
        if self._unseen_commit and self._txn.state in (TransactionState.READY, TransactionState.COMMITTING):
            pass  # the outcome of a commit whose caller was cancelled
        else:
            self._end_by_present_version()
            self._txn.commit()
        self._unseen_commit = True
        self._delivery.wake()
        while self._txn.state is TransactionState.COMMITTING:
            await self._delivery.progress()
        self._unseen_commit = False
        self._txn.check_usable()
        if self._txn.state is TransactionState.ABORTABLE_ERROR:
            self._txn.check_sendable()

    async def abort_transaction(self) -> None:
        """Drops what waits and aborts. Cancelled, the abort goes on.

        Raises:
            IllegalState: no transaction is open.
            ProducerFenced, ProducerFailed: the producer cannot be used any more.
        """
        self._check_transactional()
        self._end_by_present_version()
        self._txn.abort()
        self._delivery.wake()
        while self._txn.state in (TransactionState.ABORTING, TransactionState.INITIALIZING):
            await self._delivery.progress()
        self._txn.check_usable()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commits a consumer's offsets as part of the open transaction (KIP-447).

        Args:
            offsets: the next offset to read, by partition.
            group_metadata: `consumer.group_metadata()`, so that a member that lost its partitions is refused; a plain group
                id is not checked.

        Raises:
            TransactionFailed: the group refused; abort the transaction.
        """
        self._check_transactional()
        group = ConsumerGroupMetadata(group_metadata) if isinstance(group_metadata, str) else group_metadata
        job = self._txn.add_offsets(
            {TopicPartition(*tp): _offset(committed) for tp, committed in offsets.items()}, group
        )
        self._delivery.wake()
        while not job.done and job.error is None:
            await self._delivery.progress()
        if job.error is not None:
            self._txn.check_usable()
            raise TransactionFailed(f"the offsets were not committed: {job.error}", code=job.error.code) from job.error

    send_offsets_to_transaction = send_offsets

    # -- inside: the caller's side -------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._delivery.closed:
            raise ClientClosed("the producer is closed")
        if not self._started:
            raise ClientClosed("the producer is not started: await start(), or use it in 'async with'")

    def _cover(self, queue: PartitionQueue) -> None:
        """Makes the partition part of the open transaction, where there are transactions."""
        txn = self._txn
        if txn.transactional_id is not None:
            txn.check_sendable()
            txn.cover(queue.tp)
        elif txn.state is TransactionState.FATAL_ERROR:
            txn.check_usable()

    def _check_transactional(self) -> None:
        self._check_open()
        if self.transactional_id is None:
            raise IllegalState("this producer has no transactional_id, so it has no transactions")

    def _serialize(self, what: str, serializer: Serializer | None, data: Any, topic: str) -> bytes | None:
        if serializer is None:
            return data  # type: ignore[no-any-return]  # its type is looked at when it is measured
        try:
            return serializer(data)
        except Exception as error:
            raise SerializationFailed(f"the {what} serializer raised {error!r}", topic=topic) from error

    def _end_by_present_version(self) -> None:
        """A transaction that was kept was begun by another producer; what the cluster has finalized holds for its end."""
        if self._txn.state is TransactionState.PREPARED and self._txn.kept:
            self._txn.version = self._transaction_version()

    def _transaction_version(self) -> int:
        return self._forced_version or self._cluster.transaction_version()


def _offset(committed: OffsetAndMetadata | int) -> OffsetAndMetadata:
    return OffsetAndMetadata(committed) if isinstance(committed, int) else committed
